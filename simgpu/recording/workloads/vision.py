"""ResNet-50 and VGG16, with cuDNN, whose workspaces only a GPU can show, and without it."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 1000
# Simonyan and Zisserman 2014, "Very deep convolutional networks", configuration D: channels of the convolutions
VGG16 = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)


def vgg16():
    """Returns VGG16: images to logits."""
    layers, channels = [], 3
    for group in VGG16:
        for width in group:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten()]
    for before, after in ((512 * 7 * 7, 4096), (4096, 4096)):
        head += [nn.Linear(before, after), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, *head, nn.Linear(4096, CLASSES))


def resnet50():
    """Returns ResNet-50, the default of transformers' ResNetConfig: images to logits."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(num_labels=CLASSES))  # pyright: ignore[reportCallIssue]


def training(stage, make, batch=32, autocast=None, channels_last=False, cudnn=True):
    """Runs two steps of SGD with momentum on images of 224 × 224, then inference."""

    def step(stage=lambda name: None):
        with torch.backends.cudnn.flags(enabled=cudnn, allow_tf32=True):
            with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
                outputs = model(images)
                loss = F.cross_entropy(getattr(outputs, "logits", outputs), labels)
            stage("forward")
            loss.backward()
            stage("backward")
            optimizer.step()
            optimizer.zero_grad()
            stage("step")

    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    model = make().train().to("cuda", memory_format=memory_format)
    stage("model")
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=memory_format)
    labels = torch.randint(CLASSES, (batch,), device="cuda")
    stage("input")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step(stage)
    stage("first step")
    step(stage)
    stage("second step")
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=cudnn, allow_tf32=True):
        model.eval()(images)
    model.train()
    stage("inference")
    return step


WAYS = {
    "fp32": {},
    "fp16": {"autocast": torch.float16},
    "fp16-channels-last": {"autocast": torch.float16, "channels_last": True},
    "fp32-no-cudnn": {"cudnn": False},
}
WORKLOADS = {
    f"{make.__name__}-{way}": partial(training, make=make, **options)
    for make in (resnet50, vgg16)
    for way, options in WAYS.items()
}
