"""Tables of the tokens per second and the MFU of training steps, with what others published of real GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import nn

from helpers.plans import Model
from labkit import published
from labkit.gpu import current
from simgpu.clock.clock import Reading
from simgpu.clock.estimates import TimeEstimate, digits, estimated
from simgpu.gpus.specs import spec
from simgpu.report.speed import Shape, Speed, shape_of, speed

COLUMNS = ("tokens/s per GPU", "range", "MFU (%)")
PUBLISHED = "published"


def speeds(
    steps: Mapping[str, tuple[int, Any]],
    model: Callable[[], nn.Module] | nn.Module | Model | Shape,
    length: int,
    precision: str = "bfloat16",
    *,
    attention: int = 0,
    like: Sequence[str] = (),
) -> pd.DataFrame:
    """Returns a table with the speed of each GPU in training steps, and below that published ones of real GPUs.

    `steps`: by name, the tokens of one GPU in a step, and the step's time, as a stopwatch has it or in seconds of the
    simulated clock. The times of a simulated GPU are estimates with the factors of docs/time_bias.md. `model`: the
    whole model, or a function that builds it (on meta), or one of `helpers.plans`, or its shape. `length`: tokens of a
    sequence. `precision`: the type of its matmuls, which decides the peak. `attention`: layers × heads × size of a
    head, if the model has no configuration. `like`: how the names of published speeds of other models begin
    (labkit/published.yaml).

    MFU is counted by `simgpu.report.speed`, for published rows by the same formula and by bfloat16's peak. Raises
    KeyError if no published speed has such a name.
    """
    shape = _shape(model)
    shape = Shape(shape.trained, shape.frozen, shape.attention or attention, shape.experts)
    rows = {}
    for name, (tokens, time) in steps.items():
        gpu = current() if isinstance(time, float) else time.gpu
        taken = estimate_of(time, gpu)
        rows[name] = _row(
            speed(shape, length, tokens, taken, _peak(gpu.name, precision)), "" if gpu.simulated else "measured"
        )
    for name in like:
        for one in _like(name):
            rows[f"{one['source']}: {one['what']}"] = _published(one)
    return pd.DataFrame(rows, index=list(COLUMNS)).T.rename_axis(str(current()))


def estimate_of(time: Any, gpu: Any) -> TimeEstimate:
    """Returns the estimate of a step's time; on a real GPU the measured time, without a range.

    Seconds of the clock count as time in which the GPU works.
    """
    if not isinstance(time, float):
        return time.estimate or TimeEstimate(time.seconds, time.seconds, time.seconds, time.seconds, "measured", 0)
    found = estimated(Reading(time, busy=time, backward=time), gpu.name)
    if found is None:
        raise ValueError(f"a step of {time} s: wanted a time above 0")
    return found


def ranges(
    model: Callable[[], nn.Module] | nn.Module | Model | Shape,
    length: int,
    tokens: int,
    time: Any,
    precision: str = "bfloat16",
    *,
    attention: int = 0,
) -> list[str]:
    """Returns a step's seconds, its tokens per second per GPU and its MFU in %, each as "middle (low to high)".

    `tokens` and `time` are one GPU's in a step, and the other arguments are those of `speeds`. MFU is "unknown" where
    the peak of `precision` is.
    """
    gpu, shape = current() if isinstance(time, float) else time.gpu, _shape(model)
    shape = Shape(shape.trained, shape.frozen, shape.attention or attention, shape.experts)
    taken = estimate_of(time, gpu)
    one = speed(shape, length, tokens, taken, _peak(gpu.name, precision))
    shares = (one.mfu, one.mfu_low, one.mfu_high)
    return [
        _range(taken.seconds, taken.low, taken.high),
        _range(one.tokens_per_second, one.low, one.high),
        "unknown" if one.mfu is None else _range(*(100 * share for share in shares if share is not None)),
    ]


def as_published(name: str) -> dict[str, list[str]]:
    """Returns the published speeds whose names begin so, each with the cells of `ranges`: no time, tokens/s and MFU.

    Those that had no part in fitting the clock's factors are included. Raises KeyError if there is none.
    """
    found = {f"{one['source']}: {one['what']}": _published(one) for one in _like(name)}
    return {label: ["", f"{figure} ({what})", mfu] for label, (figure, what, mfu) in found.items()}


def _range(middle: float, low: float, high: float) -> str:
    return f"{digits(middle)} ({digits(low)} to {digits(high)})"


def _shape(model: Callable[[], nn.Module] | nn.Module | Model | Shape) -> Shape:
    if isinstance(model, Shape):
        return model
    if isinstance(model, Model):
        return Shape(model.parameters - model.of_words, 0, model.layers * model.hidden, experts=False)
    if isinstance(model, nn.Module):
        return shape_of(model)
    with torch.device("meta"):
        return shape_of(model())


def _peak(gpu: str, precision: str) -> float | None:
    """Returns the published peak of a type in FLOP/s, None if it or the GPU is unknown."""
    try:
        return spec(gpu).peak_flops.get(precision)
    except ValueError:
        return None


def _row(one: Speed, kind: str = "") -> list[str]:
    mfu = "unknown" if one.mfu is None else digits(100 * one.mfu)
    return [digits(one.tokens_per_second), kind or f"{digits(one.low)} to {digits(one.high)}", mfu]


def _like(name: str) -> list[Mapping]:
    every = {**published.values("training speeds"), **published.values("training speeds kept out")}
    found = [every[one] for one in every if one.startswith(name)]
    if not found:
        raise KeyError(f"no published speed is named {name!r}...; there are {', '.join(every)}")
    return found


def _published(one: Mapping) -> list[str]:
    flops = 6 * one["parameters"] + 12 * one["attention"] * one["length"]
    peak = spec(one["gpu"]).peak_flops["bfloat16"]
    return [f"{one['figure']:,}", PUBLISHED, digits(100 * one["figure"] * flops / peak)]
