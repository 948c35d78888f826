"""The families of the zoo and the names of what is in them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

PREFIX = "zoo-"
FAMILIES = ("transformers", "timm", "torchvision", "frameworks", "scripts")
DTYPES = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Entry:
    """One run of a model of the zoo: a workload, to be called with `stage`.

    `dtype`: "fp32", or the lower precision of autocast. `padded`: with a padding mask. `cudnn`: convolutions may take
    cuDNN, whose workspaces the simulated GPU leaves out.
    """

    family: str
    model: str
    dtype: str = "fp32"
    padded: bool = False
    cudnn: bool = False

    @property
    def name(self) -> str:
        """What the entry is called: one word, fit for a file."""
        parts = [self.family, self.model, self.dtype]
        return PREFIX + "-".join(parts + ["padded"] * self.padded + ["cudnn"] * self.cudnn)

    @property
    def source(self) -> str:
        """Tells whether a trace is of this very run: a hash of how it is made and of the loop that runs it."""
        module = _module(self.family)
        texts = [self.name, module.definition(self.model)]
        texts += [Path(inspect.getfile(one)).read_text(encoding="utf-8") for one in module.LOOPS]
        return hashlib.sha256("".join("".join(texts).split()).encode()).hexdigest()[:16]

    @property
    def libraries(self) -> tuple[str, ...]:
        """The distributions whose code it runs."""
        return _module(self.family).LIBRARIES

    def __call__(self, stage: Callable[[str], None]) -> None:
        from tools.oracle.zoo import answers

        with answers.the_same(self.name):
            _module(self.family).run(stage, self)


def _module(family: str):
    return import_module(f"tools.oracle.zoo.{family}_family")


def find(name: str) -> Entry:
    """The entry of that name. Raises KeyError for another."""
    family, *rest = name.removeprefix(PREFIX).split("-")
    options = {"padded": rest[-1] == "padded", "cudnn": rest[-1] == "cudnn"} if rest else {}
    model, dtype = rest[:2] if len(rest) - any(options.values()) == 2 else ("", "")
    if family not in FAMILIES or dtype not in DTYPES or model not in _module(family).MODELS:
        raise KeyError(f"no {name!r} in the zoo: python -m tools.oracle zoo --list names what there is")
    return Entry(family, model, dtype, **options)


def names(family: str, dtypes: tuple[str, ...], padded: tuple[bool, ...], cudnn: tuple[bool, ...]) -> list[Entry]:
    """The entries of a family in these dtypes, with these paddings and cuDNN settings; only such as there are."""
    module = _module(family)
    return [
        Entry(family, model, dtype, pad, library)
        for model in module.MODELS
        for dtype in dtypes
        for pad in padded
        for library in cudnn
        if module.exists(model, dtype, pad, library)
    ]
