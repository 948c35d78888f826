"""Rows of timm's published tables, and the clock's time for each.

Source: repository huggingface/pytorch-image-models, folder results/, commit aa4b5850c1543fa488abf260f18390eda46cf85d;
Apache License 2.0, copyright Ross Wightman and others. `timm.csv` has of each row what it says: the model, the size of
its images, the batch, samples per second. How they were measured is benchmark.py there: automatic mixed precision in
float16, 10 steps of warming up, 50 that count, each waited for. `kind` is this project's word.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import labkit
from tools.oracle.zoo import vision

FILE = Path(__file__).parent / "timm.csv"
MEMORY = 400 * 2**30  # enough for each: what is asked is how long, and some were recorded close to the limit


@dataclass(frozen=True)
class Table:
    """A table of timm's. `held_out`: it played no part in any choice of the clock's."""

    gpu: str
    torch: str
    channels_last: bool
    training: bool = False
    compiled: bool = False
    held_out: bool = False

    @property
    def what(self) -> str:
        """What was timed, in words."""
        kind = "training" if self.training else "inference, compiled" if self.compiled else "inference"
        layout = "channels last" if self.channels_last else "contiguous"
        return f"{kind}, {self.gpu}, torch {self.torch}, {layout}"


TABLES = {
    "infer-amp-nhwc-pt240-cu124-rtx4090": Table("RTX 4090", "2.4", True),
    "infer-amp-nhwc-pt240-cu124-rtx3090": Table("RTX 3090", "2.4", True),
    "train-amp-nhwc-pt112-cu113-rtx3090": Table("RTX 3090", "1.12", True, training=True),
    "infer-amp-nchw-pt240-cu124-rtx4090-dynamo": Table("RTX 4090", "2.4", False, compiled=True),
    "infer-amp-nchw-pt240-cu124-rtx4090": Table("RTX 4090", "2.4", False),
    "infer-amp-nchw-pt291-cu130-5090": Table("RTX 5090", "2.9", False, held_out=True),
}


@dataclass(frozen=True)
class Row:
    """A published row: `samples` per second."""

    table: str
    model: str
    kind: str
    size: int
    batch: int
    samples: float

    @property
    def name(self) -> str:
        """Its name among the results."""
        return f"{self.table} {self.model}"

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.batch / self.samples


def rows() -> list[Row]:
    """All that are stored."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return [
            Row(one["table"], one["model"], one["kind"], *map(int, (one["size"], one["batch"])), float(one["samples"]))
            for one in csv.DictReader(file)
        ]


def timm():
    """The library, whose folder is on Python's path."""
    vision.without_operators()
    import timm

    return timm


def measure(row: Row) -> float:
    """Seconds of a step on the clock, after a first one."""
    table = TABLES[row.table]
    library = timm()
    library.layers.set_fused_attn(not table.training)  # timm of the time of torch 1.12 made attention of products
    layout = torch.channels_last if table.channels_last else torch.contiguous_format
    with labkit.simulated_gpu(table.gpu, total_memory=MEMORY):
        model = _model(library, row).to("cuda", memory_format=layout)
        images = torch.randn(row.batch, 3, row.size, row.size, device="cuda").contiguous(memory_format=layout)
        if table.compiled:
            model = torch.compile(model)
        step = _training(model, images) if table.training else _inference(model, images)
        step()
        with labkit.stopwatch() as timing:
            step()
        return timing.seconds


def _model(library, row: Row):
    try:
        return library.create_model(row.model, img_size=row.size)
    except TypeError:
        return library.create_model(row.model)  # takes images of any size


def _inference(model, images) -> Callable[[], None]:
    model.eval()

    def step():
        with torch.inference_mode(), torch.autocast("cuda", torch.float16):
            model(images)
        torch.cuda.synchronize()

    return step


def _training(model, images) -> Callable[[], None]:
    """benchmark.py's step: no scaler, backward under autocast, and gradients set to zero, as torch 1.12 does."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False)
    loss = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.float16):
            output = model(images)
            labels = torch.empty(len(images), dtype=torch.long, device="cuda").random_(1000)
            loss(output, labels).backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step
