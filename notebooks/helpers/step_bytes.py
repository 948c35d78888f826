"""Estimates the bytes of a training step by plain arithmetic: its stages, its peaks, and a rank's share of its states.

Values that are not counts are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from labkit.formulas import block, of_counts


@dataclass(frozen=True)
class OptimizerCost:
    """Holds what an optimizer allocates, as multiples of the parameters' bytes."""

    state: int
    """Allocated in the first step and kept from then on."""
    temporary: int
    """Allocated only during a step; it decides whether the step is the peak."""


# These are torch 2.13's default (foreach) implementations, read from traces of PyTorch's CUDA host code on stub
# libraries. Their step counters are CPU tensors, so they need no GPU memory.
OPTIMIZERS = {
    "SGD": OptimizerCost(0, 0),
    "SGD with momentum": OptimizerCost(1, 0),
    "RMSprop": OptimizerCost(1, 1),
    "Adagrad": OptimizerCost(1, 2),
    "Adam": OptimizerCost(2, 1),
    "AdamW": OptimizerCost(2, 1),
}


@of_counts
def optimizer(name: str, parameter_bytes: int) -> tuple[int, int]:
    """Returns ``(state, temporary)`` of the named optimizer, in bytes.

    State and temporaries have the parameters' dtype, so each is a multiple of the parameters' size. Raises
    ``ValueError`` for an unknown name and lists the known ones.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"known optimizers are {', '.join(OPTIMIZERS)}; {name!r} was given")
    cost = OPTIMIZERS[name]
    return cost.state * parameter_bytes, cost.temporary * parameter_bytes


@of_counts
def linear_stages(widths: tuple[int, ...], batch: int, workspace: int, itemsize: int = 4) -> dict[str, int]:
    """Returns the bytes allocated after each stage of the first training step, for a stack of Linear layers with AdamW.

    ``widths`` are those of the input and of each layer's output: (1024, 1024, 2048) is two layers, with biases and
    nothing between them. Input, last output and loss (the sum of the output) are alive throughout. ``workspace`` is the
    result of :func:`cublas_workspace`. The figures hold after the stages, not at their peaks, and only if no block
    keeps a remainder of its segment, that is, if all large tensors are multiples of 2 MiB. Raises ``ValueError`` for
    fewer than two widths.
    """
    if len(widths) < 2:
        raise ValueError(f"linear_stages: one layer has two widths; {widths} was given")
    layers = list(pairwise(widths))
    parameters = sum(block(itemsize * a * b) + block(itemsize * b) for a, b in layers)
    tensors = [block(itemsize * batch * width) for width in widths]
    backward = 2 * parameters + tensors[0] + tensors[-1] + block(1) + 2 * workspace
    return {
        "forward": parameters + sum(tensors) + workspace,
        "backward": backward,
        "optimizer": backward + OPTIMIZERS["AdamW"].state * parameters,
    }


@of_counts
def checkpointed(layers: int, group: int, kept: int, held: int) -> int:
    """Returns the activation bytes at backward's peak with k = ``group`` layers per checkpoint: (n / k - 1) · held + k
    · kept.

    ``kept`` is what autograd saves for one layer without checkpointing, and ``held`` is the layer's input, which a
    checkpoint saves. Both are in bytes and equal for all layers. The formula holds for every k; with all layers in one
    checkpoint nothing is saved. It excludes what depends on neither: the model's own input, and the gradients of
    activations in flight. Raises ``ValueError`` unless ``group`` divides ``layers``.
    """
    if group < 1 or layers % group:
        raise ValueError(f"checkpointed: group divides the {layers} layers; {group} was given")
    return (layers // group - 1) * held + group * kept


@of_counts
def best_group(layers: int, kept: int, held: int) -> int:
    """Returns the layers per checkpoint for which :func:`checkpointed` is lowest.

    It is the divisor of ``layers`` near √(layers · held / kept). Raises ``ValueError`` for 0 layers.
    """
    if layers < 1:
        raise ValueError("best_group: one layer or more")
    divisors = [k for k in range(1, layers + 1) if layers % k == 0]
    return min(divisors, key=lambda k: checkpointed(layers, k, kept, held))


@of_counts
def accumulated_peak(parameters: int, sample: int, batch: int, micro_batches: int, name: str = "AdamW") -> int:
    """Returns a lower bound of the allocated peak of a step that accumulates gradients, from the second step on.

    ``parameters`` are their bytes, and ``sample`` the bytes that forward saves per sample. The bound is the larger of
    two moments: the end of a forward pass (with the optimizer's states, and with gradients from the second micro-batch
    on) and the optimizer's step. It excludes workspaces, and what backward allocates before the first activations are
    freed, so it is close if the last layers are no larger than the others. Gradients are set to None between steps.
    Raises ``ValueError`` unless ``micro_batches`` divides ``batch``, and for an unknown optimizer.
    """
    if micro_batches < 1 or batch % micro_batches:
        raise ValueError(f"accumulated_peak: equal micro-batches are wanted, not {batch} samples in {micro_batches}")
    states, temporary = optimizer(name, parameters)
    gradients = parameters if micro_batches > 1 else 0
    forward = parameters + states + gradients + batch // micro_batches * sample
    return max(forward, 2 * parameters + states + temporary)


class Shares(NamedTuple):
    """Holds a rank's share of the model's states, in bytes; its ``sum()`` is all three."""

    parameters: int
    gradients: int
    states: int


@of_counts
def zero_bytes_per_rank(
    parameters: int, ranks: int, stage: int, parameter: int = 4, gradient: int = 4, states: int = 8
) -> Shares:
    """Returns the bytes of parameters, gradients and optimizer states that one of ``ranks`` data-parallel GPUs holds.

    ``parameters`` is the parameter count. Stage 0 is plain data parallelism. Stage 1 shards the optimizer's states, 2
    the gradients too, and 3 also the parameters (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training
    Trillion Parameter Models", section 5). ``parameter``, ``gradient`` and ``states`` are bytes per parameter: 4, 4 and
    8 for AdamW in float32, or 2, 2 and 12 in that publication, for half precision with a float32 copy. Shards are
    assumed equal. What lives only inside a step is excluded: activations, gathered layers, buffers. Raises
    ``ValueError`` for fewer than one rank, and for a stage above 3.
    """
    if ranks < 1:
        raise ValueError(f"zero_bytes_per_rank: one rank or more; {ranks} was given")
    if stage > 3:
        raise ValueError(f"zero_bytes_per_rank: a stage is 0, 1, 2 or 3; {stage} was given")
    sizes = (parameter, gradient, states)
    return Shares(*(-(-size * parameters // (ranks if stage >= 3 - at else 1)) for at, size in enumerate(sizes)))
