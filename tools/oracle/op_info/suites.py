"""The suites of `torch.testing._internal`, by name; importing this imports them, which takes seconds."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
import unittest
import warnings
import zlib
from functools import cache
from itertools import islice
from unittest.mock import patch

import numpy
import torch

from tools.oracle.op_info.jobs import DTYPES, Job

MOST_SAMPLES = 8  # of an operator in float32; half of it in other passes
LOOKED_AT = 64  # samples of an operator, of which so many are taken, evenly

if importlib.util.find_spec("expecttest") is None:  # PyTorch's tests derive from its class; nothing here runs them
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_methods_invocations as operators
    from torch.testing._internal import common_modules as modules
    from torch.testing._internal import common_optimizers as optimizers


@cache
def entries(suite: str) -> dict:
    """The entries of a suite by name; a variant of an operator is "name.variant"."""
    if suite == "op":
        return {entry.full_name: entry for entry in operators.op_db}
    if suite == "foreach":
        lists = ("unary", "binary", "pointwise", "reduce", "other")
        return {entry.full_name: entry for kind in lists for entry in getattr(operators, f"foreach_{kind}_op_db")}
    if suite == "module":
        return {entry.name.replace(".", "_"): entry for entry in modules.module_db}
    return {entry.name: entry for entry in optimizers.optim_db}


def plan() -> dict[str, dict[str, dict]]:
    """Of each suite and entry: dtypes on CUDA, those with a backward, and whether it has in-place and out= variants."""
    return {
        suite: {name: _can(suite, entry) for name, entry in entries(suite).items()}
        for suite in ("op", "foreach", "module", "optim")
    }


def _can(suite: str, entry) -> dict:
    if suite == "module":
        floats = [name for name in DTYPES if getattr(torch, name) in entry.dtypes]
        return {"dtypes": [*floats, "bfloat16"], "backward": [*floats, "bfloat16"], "inplace": False, "out": False}
    if suite == "optim":
        return {"dtypes": ["float32", "bfloat16"], "backward": ["float32", "bfloat16"], "inplace": False, "out": False}
    forward, backward = entry.supported_dtypes("cuda"), entry.supported_backward_dtypes("cuda")
    return {
        "dtypes": [name for name in DTYPES if getattr(torch, name) in forward],
        "backward": [name for name in DTYPES if entry.supports_autograd and getattr(torch, name) in backward & forward],
        "inplace": entry.inplace_variant is not None,
        "out": bool(entry.supports_out),
    }


def without_cuda():
    """Inside the `with`, samples are drawn as on a machine without a GPU: the same on both sides."""
    return patch.object(torch.cuda, "is_available", lambda: False)


def seed(*what: str) -> None:
    """Sets every generator of the host to a number that follows from these words."""
    number = zlib.crc32(" ".join(what).encode())
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number % 2**32)


def of_operator(job: Job, requires_grad: bool) -> list:
    """Up to MOST_SAMPLES, or half of it, of an operator's own samples, on the CPU, as SampleInputs."""
    entry = entries(job.suite)[job.name]
    seed(job.name, job.dtype)
    with warnings.catch_warnings(), without_cuda():
        warnings.simplefilter("ignore")
        drawn = entry.sample_inputs_func(entry, "cpu", getattr(torch, job.dtype), requires_grad)
        found = list(islice(drawn, LOOKED_AT))
    return spread(found, MOST_SAMPLES if job[2:] == ("float32", "plain", "small") else MOST_SAMPLES // 2)


def spread(found: list, most: int) -> list:
    """Up to `most` of them, evenly, the first and the last among them."""
    if len(found) <= most:
        return found
    return [found[i * (len(found) - 1) // (most - 1)] for i in range(most)]
