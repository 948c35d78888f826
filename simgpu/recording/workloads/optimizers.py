"""Steps of each optimizer, in each of its implementations, on layers of unequal sizes."""

from functools import partial
from itertools import pairwise

import torch
from torch import nn

WIDTHS = (1024, 2048, 1031, 4096, 512)


def optimize(stage, make):
    """Runs two steps with the optimizer that `make(parameters)` builds."""
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(WIDTHS))).to("cuda")
    optimizer = make(model.parameters())
    inputs = torch.randn(32, WIDTHS[0], device="cuda")
    stage("model")

    def step(stage=lambda name: None):
        model(inputs).sum().backward()
        stage("backward")
        optimizer.step()
        stage("step")
        optimizer.zero_grad()

    step(stage)
    stage("first step")
    step(stage)
    stage("second step")
    return step


optim = torch.optim
KINDS = {
    "sgd": partial(optim.SGD, lr=0.1),
    "sgd-momentum": partial(optim.SGD, lr=0.1, momentum=0.9),
    "adam": optim.Adam,
    "adam-amsgrad": partial(optim.Adam, amsgrad=True),
    "adamw": optim.AdamW,
    "adagrad": optim.Adagrad,
    "adadelta": optim.Adadelta,
    "adamax": optim.Adamax,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "rmsprop": optim.RMSprop,
    "rprop": optim.Rprop,
    "asgd": optim.ASGD,
    "adafactor": optim.Adafactor,
    "sgd-momentum-for-loop": partial(optim.SGD, lr=0.1, momentum=0.9, foreach=False),
    "adamw-for-loop": partial(optim.AdamW, foreach=False),
    "sgd-momentum-fused": partial(optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "adam-fused": partial(optim.Adam, fused=True),
    "adamw-fused": partial(optim.AdamW, fused=True),
}
WORKLOADS = {f"optimizer-{name}": partial(optimize, make=make) for name, make in KINDS.items()}
