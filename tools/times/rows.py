"""Rows of published tables, and the clock's time for each: timm's, and torchvision's models in training.

`timm.csv`: repository huggingface/pytorch-image-models, folder results/, commit
aa4b5850c1543fa488abf260f18390eda46cf85d; Apache License 2.0, copyright Ross Wightman and others. It has of each row
what it says: the model, the size of its images, the batch, samples per second. How they were measured is benchmark.py
there: automatic mixed precision in float16, 10 steps of warming up, 50 that count, each waited for.

`torch_benchmark.csv`: repository XHMY/torch_benchmark, README.md, commit 57e0620; no licence is named, and its figures
alone are repeated. Taken is what ran on Linux on GPUs of the list. Its nn_bench.py trains torchvision's models, with
parameters and images in one dtype and SGD with momentum, and divides the time of 100 steps by 100, the first one and
what cuDNN tries in it (`benchmark = True`) among them, and for the first model CUDA's own start. Whether products in
float32 took TF32 its test of products says (83 TFLOP/s on the RTX 4090 do, 51 on the H100 and H200 do not).

`kind` is this project's word.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import labkit
from tools.oracle.zoo import vision

FILES = [Path(__file__).parent / name for name in ("timm.csv", "torch_benchmark.csv")]
MEMORY = 400 * 2**30  # enough for each: what is asked is how long, and some were recorded close to the limit


@dataclass(frozen=True)
class Table:
    """A published table. `held_out`: it played no part in any choice of the clock's. `torchvision`: its models are
    that library's, in one dtype, which their names end with. `tf32`: products of float32 take it."""

    gpu: str
    torch: str
    channels_last: bool
    training: bool = False
    compiled: bool = False
    held_out: bool = False
    torchvision: bool = False
    tf32: bool = False

    @property
    def what(self) -> str:
        """What was timed, in words."""
        kind = "training" if self.training else "inference, compiled" if self.compiled else "inference"
        if self.torchvision:
            return f"{kind}, {self.gpu}, torch {self.torch}, torchvision"
        layout = "channels last" if self.channels_last else "contiguous"
        return f"{kind}, {self.gpu}, torch {self.torch}, {layout}"


TABLES = {
    "infer-amp-nhwc-pt240-cu124-rtx4090": Table("RTX 4090", "2.4", True),
    "infer-amp-nhwc-pt240-cu124-rtx3090": Table("RTX 3090", "2.4", True),
    "train-amp-nhwc-pt112-cu113-rtx3090": Table("RTX 3090", "1.12", True, training=True),
    "infer-amp-nchw-pt240-cu124-rtx4090-dynamo": Table("RTX 4090", "2.4", False, compiled=True),
    "infer-amp-nchw-pt240-cu124-rtx4090": Table("RTX 4090", "2.4", False),
    "infer-amp-nchw-pt291-cu130-5090": Table("RTX 5090", "2.9", False, held_out=True),
    "infer-amp-nchw-pt291-cu130-5090-dynamo": Table("RTX 5090", "2.9", False, compiled=True, held_out=True),
    "infer-amp-nchw-pt291-cu128-4090": Table("RTX 4090", "2.9", False, held_out=True),
    "torch_benchmark-rtx4090": Table("RTX 4090", "2.1", False, True, held_out=True, torchvision=True, tf32=True),
    "torch_benchmark-h100": Table("H100", "2.1", False, training=True, held_out=True, torchvision=True),
    "torch_benchmark-h200": Table("H200", "2.5", False, training=True, held_out=True, torchvision=True),
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
    return [
        Row(one["table"], one["model"], one["kind"], *map(int, (one["size"], one["batch"])), float(one["samples"]))
        for path in FILES
        for one in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    ]


def timm():
    """The library, whose folder is on Python's path."""
    vision.without_operators()
    import timm

    return timm


def measure(row: Row) -> float:
    """Seconds of a step on the clock, after a first one."""
    table = TABLES[row.table]
    if table.torchvision:
        return _measure_training(row, table)
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


def _measure_training(row: Row, table: Table) -> float:
    """The same for a step of nn_bench.py's."""
    vision.without_operators()
    import torchvision

    name, _, dtype = row.model.partition(" ")
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = table.tf32
    try:
        with labkit.simulated_gpu(table.gpu, total_memory=MEMORY):
            model = getattr(torchvision.models, name)().to("cuda", getattr(torch, dtype))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
            loss = torch.nn.CrossEntropyLoss()

            def step():
                optimizer.zero_grad()
                images = torch.randn(row.batch, 3, row.size, row.size, dtype=getattr(torch, dtype), device="cuda")
                labels = torch.randint(0, 5, (row.batch,), device="cuda")
                loss(model(images), labels).backward()
                optimizer.step()

            step()
            with labkit.stopwatch() as timing:
                for _ in range(2):
                    step()
            return timing.seconds / 2
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


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
