"""torchvision's models at real size."""

from __future__ import annotations

import inspect

import torch

from tools.oracle.zoo import training, vision

LIBRARIES = ("torchvision",)
LOOPS = (training, vision)
# name: (batch, side of the images)
MODELS = {
    "alexnet": (8, 224), "vgg11": (4, 224), "vgg16_bn": (2, 224), "googlenet": (8, 224), "inception_v3": (4, 299),
    "squeezenet1_0": (8, 224), "resnet18": (8, 224), "resnet50": (8, 224), "resnext50_32x4d": (8, 224),
    "wide_resnet50_2": (4, 224), "densenet121": (8, 224), "mnasnet1_0": (8, 224), "mobilenet_v2": (8, 224),
    "mobilenet_v3_large": (8, 224), "mobilenet_v3_small": (8, 224), "shufflenet_v2_x1_0": (8, 224),
    "efficientnet_b0": (8, 224), "efficientnet_v2_s": (4, 224), "regnet_y_400mf": (8, 224), "regnet_x_800mf": (8, 224),
    "convnext_tiny": (8, 224), "vit_b_16": (4, 224), "vit_b_32": (8, 224), "swin_t": (8, 224), "swin_v2_t": (8, 256),
    "maxvit_t": (4, 224), "fcn_resnet50": (2, 224), "deeplabv3_resnet50": (2, 224),
    "deeplabv3_mobilenet_v3_large": (4, 224), "lraspp_mobilenet_v3_large": (4, 224), "r3d_18": (2, 112),
    "mc3_18": (2, 112), "r2plus1d_18": (2, 112), "s3d": (2, 224), "mvit_v2_s": (1, 224), "swin3d_t": (1, 224),
    "raft_small": (1, 128),
}  # fmt: skip
VIDEOS = {"r3d_18": 8, "mc3_18": 8, "r2plus1d_18": 8, "s3d": 14, "mvit_v2_s": 16, "swin3d_t": 8}
SEGMENTING = ("fcn", "deeplab", "lraspp")
# They choose boxes by their scores, which no simulated tensor has.
NEED_VALUES = ("fasterrcnn_resnet50_fpn", "retinanet_resnet50_fpn", "ssd300_vgg16", "fcos_resnet50_fpn")


def exists(model: str, dtype: str, padded: bool, cudnn: bool) -> bool:
    """Whether there is such a run."""
    return not padded


def definition(model: str) -> str:
    """The source of a model."""
    return f"{model} {MODELS[model]} {VIDEOS.get(model)} {inspect.getsource(run)}"


def run(stage, entry) -> None:
    """Two steps and an evaluation."""
    vision.without_operators()
    from torchvision import models

    torch.manual_seed(0)
    batch, side = MODELS[entry.model]
    no_weights = {"weights": None} | ({"weights_backbone": None} if entry.model.startswith(SEGMENTING) else {})
    model = models.get_model(entry.model, **no_weights)
    if entry.model.startswith("raft"):
        inputs = {"image1": torch.randn(batch, 3, side, side), "image2": torch.randn(batch, 3, side, side)}
    else:
        frames = [VIDEOS[entry.model]] if entry.model in VIDEOS else []
        inputs = {"images": torch.randn(batch, 3, *frames, side, side)}
    training.two_steps(stage, vision.ByName(model), inputs, entry.dtype, cudnn=entry.cudnn)
