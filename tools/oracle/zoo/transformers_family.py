"""Architectures of the transformers library with small configurations."""

from __future__ import annotations

import inspect

import torch

from tools.oracle.zoo import drawn, heads, training
from tools.oracle.zoo.architectures import UNPADDED

ARCHITECTURES = heads.TABLE

LIBRARIES = ("transformers",)
LOOPS = (training,)
MODELS = ARCHITECTURES


def exists(model: str, dtype: str, padded: bool, cudnn: bool) -> bool:
    """Whether there is such a run: a padding mask only for what reads text, and never cuDNN."""
    return dtype != "fp16" and not cudnn and not (padded and model in UNPADDED)


def definition(model: str) -> str:
    """The source of a model."""
    make = ARCHITECTURES[model]
    parts = [
        inspect.getsource(cell.cell_contents) if callable(cell.cell_contents) else repr(cell.cell_contents)
        for cell in make.__closure__ or ()
    ]
    parts += [inspect.getsource(drawn.Draw)] * model.startswith(drawn.PREFIX)
    return "".join(parts) + inspect.getsource(make)


def run(stage, entry) -> None:
    """Two steps and an evaluation."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[entry.model](entry.padded)
    training.two_steps(stage, model, inputs, entry.dtype)
