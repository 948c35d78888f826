"""Reads recordings/published_times.yaml: times that others published of training and inference on real GPUs.

A source is a group of rows that were published together. Half of the sources may be used to fit constants of the clock
("fit"), and the other half only tests them ("kept out"). `half` draws the halves from the sources' names, and no figure
has a part in it. A source whose rows this project had compared with the clock before the draw is always in "fit".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import yaml

from simgpu.gpus.specs import SPECS

FILE = Path(__file__).parents[2] / "recordings" / "published_times.yaml"

HALVES = ("fit", "kept out")
WORK = (
    "training",  # forward, backward and optimizer step
    "LoRA training",
    "QLoRA training",
    "forward and backward",  # without an optimizer step
    "inference",  # one forward pass
    "decoding",  # one token after another
    "generation",  # a whole sequence or image
)
UNITS = (
    "ms/step",  # milliseconds of what `work` names, for all its micro-batches
    "samples/s",  # of all GPUs together
    "tokens/s",  # of all GPUs together, or of one where the source does not say
    "tokens/s/GPU",
)
PRECISIONS = (
    *("float32", "tf32", "float16", "bfloat16"),
    *("amp float16", "amp bfloat16"),  # autocast
    "apex O2 float16",  # parameters in float16 with master copies in float32
    *("float8", "mxfp8", "nvfp4", "int8", "int4"),  # of the matmuls
)
MODES = ("eager", "compiled", "compiled, reduce-overhead", "compiled, max-autotune", "other compiler")
CHECKPOINTING = ("none", "selective", "full")
FAMILIES = {"A100": "A100-40GB", "V100": "V100-16GB"}
"""GPUs whose memory a source does not state, with the one that stands for them."""
UNKNOWN = ("B300",)
"""GPUs that simgpu does not know."""


@dataclass(frozen=True)
class Row:
    """Holds one published figure. None means that the source does not state it.

    source, half, file: the source's name, its half, and the key of the file among the source's files.
    work: one of `WORK`. gpu: a key of `SPECS` or of `FAMILIES`, or one of `UNKNOWN`. variant: form factor, memory or
    machine as published. watts: power limit of one GPU. gpus: their number.
    library: where the model comes from. parameters: their number as published.
    batch: samples of one GPU in one forward pass. accumulation: forward passes per optimizer step.
    global_batch: samples of all GPUs in one optimizer step. tokens: sequence length. image: height and width in pixels.
    precision, mode, checkpointing: one of `PRECISIONS`, `MODES`, `CHECKPOINTING`. layout: memory format of images.
    attention: "eager", "sdpa" or "flash". parallelism: how the GPUs share the work; "none" on a single one.
    torch, cuda, container: versions as published. note: what else distinguishes the row.
    figure, unit: the published figure and one of `UNITS`.
    """

    source: str
    half: str
    file: str
    work: str
    gpu: str
    gpus: int
    library: str
    model: str
    figure: float
    unit: str
    variant: str | None = None
    watts: int | None = None
    parameters: int | None = None
    batch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    tokens: int | None = None
    image: int | None = None
    precision: str | None = None
    mode: str | None = None
    layout: str | None = None
    checkpointing: str | None = None
    attention: str | None = None
    optimizer: str | None = None
    parallelism: str | None = None
    torch: str | None = None
    cuda: str | None = None
    container: str | None = None
    note: str | None = None

    @property
    def name(self) -> str:
        """Returns what tells this row from every other, in words."""
        parts = (self.source, self.file, self.work, self.gpu, self.variant, self.gpus, self.model, self.batch)
        parts += (self.tokens, self.image, self.precision, self.mode, self.layout, self.attention, self.optimizer)
        parts += (self.parallelism, self.container, self.torch, self.global_batch, self.note)
        return " ".join(str(part) for part in parts if part is not None)

    @property
    def kind(self) -> str:
        """Returns "training", or "inference" for everything without a backward pass."""
        return "inference" if self.work in ("inference", "decoding", "generation") else "training"

    @property
    def simulated_gpu(self) -> str | None:
        """Returns the key of the GPU that simgpu simulates for this row, None if it has none."""
        name = FAMILIES.get(self.gpu, self.gpu)
        return name if name in SPECS else None

    @property
    def replicas(self) -> int:
        """Returns how many times the model is there: the GPUs, divided by those that share one batch."""
        sharing = 1
        for degree in re.findall(r"\b(?:TP|PP|CP|sequence parallel) (\d+)", self.parallelism or ""):
            sharing *= int(degree)
        return self.gpus // sharing

    @property
    def seconds(self) -> float | None:
        """Returns the seconds of a step of `work` that the figure states, None if it takes an unstated size.

        A step of training with accumulation is a whole optimizer step. A step of decoding is one token.
        """
        if self.unit == "ms/step":
            return self.figure / 1000
        if self.work == "decoding":
            return 1 / self.figure
        samples = self.global_batch or (self.batch and self.batch * self.replicas * (self.accumulation or 1))
        if samples is None:
            return None
        if self.unit == "samples/s":
            return samples / self.figure
        if self.tokens is None or (self.unit == "tokens/s" and self.gpus > 1):
            return None
        return samples * self.tokens / self.figure / (self.gpus if self.unit == "tokens/s/GPU" else 1)


@dataclass(frozen=True)
class Source:
    """Holds where rows come from, and how they were chosen.

    url, commit, licence: of the repository. what: how the figures came about.
    candidates: rows to choose from, in the order that `order` describes. every: each such row was kept, the first
    included; None where `order` gives two steps.
    used_before: this project had compared its rows with the clock before the halves were drawn.
    files: path and date of each file, by key; a file may have a commit of its own.
    """

    name: str
    url: str
    commit: str
    licence: str
    what: str
    order: str
    candidates: int
    every: int | None
    used_before: bool
    files: Mapping[str, Mapping[str, str | None]]


@cache
def _content() -> dict:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


@cache
def sources() -> dict[str, Source]:
    """Returns all sources by name."""
    names = {field.name for field in fields(Source)}
    return {
        name: Source(name=name, **{key: value for key, value in one.items() if key in names})
        for name, one in _content()["sources"].items()
    }


@cache
def rows() -> tuple[Row, ...]:
    """Returns all rows, in the file's order.

    Raises TypeError if a row has an unknown field or lacks one that every row must have.
    """
    found = []
    for name, source in _content()["sources"].items():
        for one in source["rows"]:
            shared = source["same"] | source["files"][one["file"]].get("same", {})
            found.append(Row(source=name, half=halves()[name], **(shared | one)))
    return tuple(found)


SALT = 0
"""The smallest number with which the draw is balanced; the test repeats the search."""


def half(source: Source, salt: int = SALT) -> str:
    """Returns the half of a source: "fit" if it was used before, otherwise by a hash of `salt` and its name."""
    if source.used_before:
        return "fit"
    return HALVES[hashlib.sha256(f"{salt}:{source.name}".encode()).digest()[0] % 2]


@cache
def halves() -> dict[str, str]:
    """Returns the half of every source by name."""
    return {name: half(source) for name, source in sources().items()}


def is_balanced(drawn: Mapping[str, str], published: Sequence[Row]) -> bool:
    """Returns whether both halves have at least 100 rows of training on five GPUs and 60 of inference on three.

    Neither may have more than six tenths of all rows.
    """
    for name in HALVES:
        mine = [row for row in published if drawn[row.source] == name]
        training = [row.simulated_gpu for row in mine if row.kind == "training"]
        inference = [row.simulated_gpu for row in mine if row.kind == "inference"]
        if len(training) < 100 or len(inference) < 60 or len(mine) > 0.6 * len(published):
            return False
        if len(set(training) - {None}) < 5 or len(set(inference) - {None}) < 3:
            return False
    return True
