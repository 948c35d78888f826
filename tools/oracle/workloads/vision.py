"""Convolutional networks with cuDNN off: what cuDNN takes for itself only a GPU can tell."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

VGG16 = (
    64,
    64,
    "pool",
    128,
    128,
    "pool",
    256,
    256,
    256,
    "pool",
    512,
    512,
    512,
    "pool",
    512,
    512,
    512,
    "pool",
)


def vgg16():
    """VGG16 (Simonyan and Zisserman, 2014, configuration D)."""
    layers, channels = [], 3
    for width in VGG16:
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
    head = [
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(True),
        nn.Dropout(),
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head, nn.Linear(4096, 1000))


class Residual(nn.Module):
    """Two convolutions with batch norm around a sum, halving the size where `stride` is 2."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.skip = nn.Identity()
        if stride > 1 or before != after:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x), inplace=True)


def resnet():
    """A ResNet of six residual blocks."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    widths = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1))
    return nn.Sequential(
        *stem, *(Residual(*w) for w in widths), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)
    )


def train(stage, make, classes, batch, autocast=None, channels_last=False):
    """A step of SGD with momentum on images of 224 × 224, then inference."""
    with torch.backends.cudnn.flags(enabled=False):
        _train(stage, make, classes, batch, autocast, channels_last)


def _train(stage, make, classes, batch, autocast, channels_last):
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    model = make().to("cuda", memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=memory_format)
    targets = torch.randint(classes, (batch,), device="cuda")
    stage("model and images")
    with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
        loss = F.cross_entropy(model(images), targets)
    stage("forward")
    loss.backward()
    stage("backward")
    optimizer.step()
    optimizer.zero_grad()
    stage("step")
    with torch.no_grad():
        model.eval()(images)
    stage("inference")


WORKLOADS = {
    "vgg16": partial(train, make=vgg16, classes=1000, batch=8),
    "vgg16_autocast_fp16": partial(train, make=vgg16, classes=1000, batch=8, autocast=torch.float16),
    "resnet": partial(train, make=resnet, classes=10, batch=16),
    "resnet_channels_last": partial(train, make=resnet, classes=10, batch=16, channels_last=True),
}
