"""Two steps of each optimizer, in each of its implementations, on a small model of unequal layers."""

from functools import partial
from itertools import pairwise

import torch
from torch import nn


def optimize(stage, make, dtype=torch.float32):
    """Build, two steps, `zero_grad`, with the optimizer that `make(parameters)` builds."""
    widths = (257, 512, 1031, 300)
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths))).to("cuda", dtype)
    optimizer = make(model.parameters())
    inputs = torch.randn(32, widths[0], dtype=dtype, device="cuda")
    stage("model")
    for step in ("first", "second"):
        model(inputs).sum().backward()
        stage(f"{step} backward")
        optimizer.step()
        stage(f"{step} step")
        optimizer.zero_grad()
    stage("zero_grad")


optim = torch.optim
FAMILIES = {
    "sgd": (optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "sgd_nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": (optim.Adam, {}),
    "adam_weight_decay": (optim.Adam, {"weight_decay": 0.01}),
    "adam_amsgrad": (optim.Adam, {"amsgrad": True}),
    "adamw": (optim.AdamW, {}),
    "adagrad": (optim.Adagrad, {}),
    "adadelta": (optim.Adadelta, {}),
    "adamax": (optim.Adamax, {}),
    "nadam": (optim.NAdam, {}),
    "radam": (optim.RAdam, {}),
    "rmsprop": (optim.RMSprop, {}),
    "rmsprop_centered": (optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "rprop": (optim.Rprop, {}),
    "asgd": (optim.ASGD, {}),
}
FUSED = ("sgd_momentum", "adam", "adamw", "adagrad")
CAPTURABLE = ("adamw", "rmsprop")

WORKLOADS = {
    f"optimizer_{name}": partial(optimize, make=partial(kind, **options)) for name, (kind, options) in FAMILIES.items()
}
WORKLOADS |= {
    f"optimizer_{name}_for_loop": partial(optimize, make=partial(kind, foreach=False, **options))
    for name, (kind, options) in FAMILIES.items()
}
WORKLOADS |= {
    f"optimizer_{name}_{how}": partial(optimize, make=partial(FAMILIES[name][0], **FAMILIES[name][1], **{how: True}))
    for how, names in (("fused", FUSED), ("capturable", CAPTURABLE))
    for name in names
}
WORKLOADS |= {
    "optimizer_adamw_bf16": partial(optimize, make=optim.AdamW, dtype=torch.bfloat16),
    "optimizer_adafactor": partial(optimize, make=optim.Adafactor),
}
