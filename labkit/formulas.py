"""Predictions on paper: plain arithmetic, no tensor is made and no counter is read.

Every size is in bytes, every parameter count a number of elements; what is no count is refused. Where a
rule belongs to the GPU or to the version of torch, its docstring says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from math import ceil, prod
from typing import NamedTuple

import torch

from labkit.units import MIB, whole_bytes

MIN_BLOCK_SIZE = 512  # kMinBlockSize, c10/core/AllocatorConfig.h
SMALL_SIZE = MIB  # kSmallSize: up to here a request is served from the small pool
SMALL_BUFFER = 2 * MIB  # kSmallBuffer; kRoundLarge has the same value
LARGE_BUFFER = 20 * MIB  # kLargeBuffer, since torch 2.11 the option large_segment_size_mb
MIN_LARGE_ALLOC = 10 * MIB  # kMinLargeAlloc: from here a request gets a segment of its own size


def _of_counts(formula: Callable) -> Callable:
    """The formula, which refuses an argument of type ``int`` that is no count (``TypeError``, ``ValueError``)."""
    signature = inspect.signature(formula)
    counts = [name for name, parameter in signature.parameters.items() if parameter.annotation == "int"]

    @wraps(formula)
    def checked(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        for name in counts:
            for value in given[name] if isinstance(given.get(name), tuple) else [given.get(name, 0)]:
                if (isinstance(value, float) and value != value) or whole_bytes(value) < 0:
                    raise ValueError(f"{formula.__name__}: {name} is a whole number of 0 or more, not {value!r}")
        return formula(*args, **kwargs)

    return checked


def block(nbytes: int) -> int:
    """The block for a request of ``nbytes``: rounded up to a multiple of 512 B; nothing for 0.

    In the allocator's default setting (no ``roundup_power2_divisions``) and up to the remainder of at most
    1 MiB that stays with a large block. Raises ``ValueError`` for a negative size.
    """
    if whole_bytes(nbytes) < 0:
        raise ValueError(f"a request has a size of 0 bytes or more, not {nbytes}")
    return -(-whole_bytes(nbytes) // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE


def segment(nbytes: int) -> int:
    """The segment that the allocator asks of CUDA when no free block can serve ``nbytes``.

    2 MiB for the small pool (up to 1 MiB), 20 MiB below 10 MiB, else rounded up to 2 MiB.
    """
    size = block(nbytes)
    if size == 0:
        return 0
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    if size < MIN_LARGE_ALLOC:
        return LARGE_BUFFER
    return -(-size // SMALL_BUFFER) * SMALL_BUFFER


@_of_counts
def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> int:
    """The block of a dense tensor of this shape; ``tensor()`` is a scalar: 512 B."""
    return block(prod(shape) * dtype.itemsize)


@_of_counts
def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Parameters of a Linear layer: a weight ``[outputs, inputs]`` and a bias ``[outputs]``."""
    return inputs * outputs + bias * outputs


@_of_counts
def conv2d(channels_in: int, channels_out: int, kernel: int, bias: bool = True, groups: int = 1) -> int:
    """Parameters of a square Conv2d: a weight ``[out, in / groups, kernel, kernel]`` and a bias ``[out]``.

    Raises ``ValueError`` unless ``groups`` divides both numbers of channels.
    """
    if groups < 1 or channels_in % groups or channels_out % groups:
        raise ValueError(f"conv2d: groups divides the channels, {channels_in} and {channels_out}; {groups} was given")
    return channels_out * (channels_in // groups) * kernel * kernel + bias * channels_out


@_of_counts
def norm(features: int) -> int:
    """Parameters of a BatchNorm or LayerNorm over ``features``: a scale and a shift."""
    return 2 * features


@_of_counts
def embedding(entries: int, features: int) -> int:
    """Parameters of an Embedding: one table ``[entries, features]``."""
    return entries * features


@_of_counts
def attention(features: int, bias: bool = True) -> int:
    """Parameters of multi-head attention: query, key, value and output are Linears of ``features``."""
    return 4 * linear(features, features, bias)


def parameters(model: torch.nn.Module) -> int:
    """Bytes of the blocks that the parameters take, tied ones once. Their gradients take as much again."""
    return sum(block(p.numel() * p.element_size()) for p in model.parameters())


@dataclass(frozen=True)
class OptimizerCost:
    """What an optimizer takes, as multiples of the parameters' own bytes."""

    state: int
    """Kept from the first step on."""
    temporary: int
    """Held inside each step only; it decides whether the step is the peak."""


# torch 2.13's default (foreach) implementations, read from traces of PyTorch's CUDA host code under stub
# libraries. Their step counters are CPU tensors and take no GPU memory.
OPTIMIZERS = {
    "SGD": OptimizerCost(0, 0),
    "SGD with momentum": OptimizerCost(1, 0),
    "RMSprop": OptimizerCost(1, 1),
    "Adagrad": OptimizerCost(1, 2),
    "Adam": OptimizerCost(2, 1),
    "AdamW": OptimizerCost(2, 1),
}


@_of_counts
def optimizer(name: str, parameter_bytes: int) -> tuple[int, int]:
    """``(state, temporary)`` in bytes of the named optimizer.

    State and temporaries have the parameters' dtype, so they have the parameters' size too. Raises
    ``ValueError`` for an unknown name, with the known ones.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"known optimizers are {', '.join(OPTIMIZERS)}; {name!r} was given")
    cost = OPTIMIZERS[name]
    return cost.state * parameter_bytes, cost.temporary * parameter_bytes


@_of_counts
def linear_stages(widths: tuple[int, ...], batch: int, workspace: int, itemsize: int = 4) -> dict[str, int]:
    """Bytes allocated after each stage of a first training step of a stack of Linear layers with AdamW.

    ``widths`` are those of the input and of each layer's output: (1024, 1024, 2048) has two layers, with biases and
    nothing between them. Input, last output and loss, the sum of the output, are alive all the time. ``workspace`` is
    :func:`cublas_workspace`'s. It holds after the stages, not at their peaks, and as long as no block keeps a remainder
    of its segment: where all large tensors are whole multiples of 2 MiB. Raises ``ValueError`` for fewer than two
    widths.
    """
    if len(widths) < 2:
        raise ValueError(f"linear_stages: one layer has two widths; {widths} was given")
    layers = list(pairwise(widths))
    parameters = sum(block(itemsize * a * b) + block(itemsize * b) for a, b in layers)
    tensors = [block(itemsize * batch * width) for width in widths]
    backward = 2 * parameters + tensors[0] + tensors[-1] + MIN_BLOCK_SIZE + 2 * workspace
    return {
        "forward": parameters + sum(tensors) + workspace,
        "backward": backward,
        "optimizer": backward + OPTIMIZERS["AdamW"].state * parameters,
    }


@_of_counts
def encoder_layer(
    batch: int, length: int, hidden: int, heads: int, inner: int, attention: str = "eager", dropout: bool = False
) -> int:
    """Bytes that an encoder layer like BERT's keeps for backward, in float32, its input counted and its result not.

    Query, key, value and output Linears of ``hidden``, softmax attention of ``heads``, a Linear to ``inner``, GELU, a
    Linear back, two LayerNorms and two residuals, before or after the norms. ``attention`` is ``"eager"``, operator
    after operator, or ``"sdpa"``, which is the memory-efficient kernel in float32. ``dropout`` says that dropout is at
    work, after both blocks and on the attention weights. Raises ``ValueError`` for another attention.
    """
    if attention not in ("eager", "sdpa"):
        raise ValueError(f"encoder_layer knows eager and sdpa attention; {attention!r} was given")
    wide, narrow = tensor(batch, length, inner), tensor(batch, length, hidden)
    weights = tensor(batch, heads, length, length)
    kept = 8 * narrow + 2 * wide + 4 * tensor(batch, length)
    kept += weights if attention == "eager" else tensor(batch, heads, -(-length // 32) * 32)  # a number for each row
    if dropout:
        kept += 2 * tensor(batch, length, hidden, dtype=torch.bool)
    if dropout and attention == "eager":
        kept += weights + tensor(batch, heads, length, length, dtype=torch.bool)
    return kept


@_of_counts
def checkpointed(layers: int, group: int, kept: int, held: int) -> int:
    """Bytes of activations at backward's peak, k = ``group`` layers to a checkpoint: (n / k - 1) · held + k · kept.

    ``kept`` is what autograd keeps of one layer without a checkpoint, ``held`` the layer's input, which a checkpoint
    keeps; both in bytes, and the same for all layers. It holds for each number of layers to a checkpoint; with all
    layers in one nothing is saved. What depends on neither is left out: the model's own input, and gradients of
    activations on their way. Raises ``ValueError`` unless ``group`` divides ``layers``.
    """
    if group < 1 or layers % group:
        raise ValueError(f"checkpointed: group divides the {layers} layers; {group} was given")
    return (layers // group - 1) * held + group * kept


@_of_counts
def best_group(layers: int, kept: int, held: int) -> int:
    """Layers to a checkpoint for which :func:`checkpointed` is lowest: the divisor of ``layers`` near √(layers · held /
    kept). Raises ``ValueError`` for no layers.
    """
    if layers < 1:
        raise ValueError("best_group: one layer or more")
    divisors = [k for k in range(1, layers + 1) if layers % k == 0]
    return min(divisors, key=lambda k: checkpointed(layers, k, kept, held))


@_of_counts
def accumulated_peak(parameters: int, sample: int, batch: int, micro_batches: int, name: str = "AdamW") -> int:
    """A lower bound of the allocated peak of a training step that accumulates gradients, from the second step on.

    ``parameters`` are their bytes, ``sample`` the bytes that forward keeps for a sample. The larger of two moments: the
    end of a forward pass, with the optimizer's states, and with gradients from the second micro-batch on; and the
    optimizer's step. It leaves out workspaces, and what backward takes before the first activations are freed, so it
    is good where the last layers are no larger than the others. Gradients are set to None between the steps. Raises
    ``ValueError`` unless ``micro_batches`` divides ``batch``, and for an unknown optimizer.
    """
    if micro_batches < 1 or batch % micro_batches:
        raise ValueError(f"accumulated_peak: equal micro-batches are wanted, not {batch} samples in {micro_batches}")
    states, temporary = optimizer(name, parameters)
    gradients = parameters if micro_batches > 1 else 0
    forward = parameters + states + gradients + batch // micro_batches * sample
    return max(forward, 2 * parameters + states + temporary)


@_of_counts
def attention_kept(
    batch: int,
    heads: int,
    length: int,
    width: int,
    fused: bool = True,
    itemsize: int = 4,
    dropout: bool = False,
    upcast: bool = False,
) -> int:
    """Bytes that softmax attention keeps for backward beside query, key and value, for ``heads`` of ``width`` numbers.

    ``fused`` is the memory-efficient, flash or cuDNN kernel: the result, and 4 B for each row of the map. Otherwise the
    operators run one by one (transformers' eager attention) and the map is kept: the weights that softmax gives, and
    with dropout its mask of 1 B and its result. ``upcast`` says that softmax works in float32 and its weights are
    converted back, as in LLaMA. In requested bytes, without a mask of the caller's. The memory-efficient kernel rounds
    rows up to a multiple of 32, and flash and cuDNN keep up to 24 B for random numbers.
    """
    result = itemsize * batch * heads * length * width
    if fused:
        return result + 4 * batch * heads * length
    weights = max(itemsize, 4) if upcast else itemsize
    after = 1 + itemsize if dropout else itemsize if upcast and itemsize < 4 else 0
    return result + (weights + after) * batch * heads * length * length


# Tensors of the inner width that an MLP keeps: what the activation keeps, and the input of the last Linear.
INNER_TENSORS = {"relu": 1, "gelu": 2, "silu": 2, "swiglu": 4, "gelu written out": 5}


@_of_counts
def mlp(tokens: int, width: int, inner: int, activation: str = "gelu", itemsize: int = 2) -> int:
    """Bytes that the MLP of a transformer keeps for backward: Linear, activation, Linear; its input counted.

    ``"relu"``, ``"gelu"`` and ``"silu"`` are one operator; ``"swiglu"`` is ``down(silu(gate(x)) * up(x))``, and
    ``"gelu written out"`` the formula with tanh, operator by operator. In one dtype of ``itemsize`` bytes, without
    dropout, requested bytes. Raises ``ValueError`` for another activation.
    """
    if activation not in INNER_TENSORS:
        raise ValueError(f"mlp knows {', '.join(INNER_TENSORS)}; {activation!r} was given")
    return itemsize * tokens * (width + INNER_TENSORS[activation] * inner)


@_of_counts
def gpt_layer(batch: int, length: int, hidden: int, heads: int, attention: str = "eager", dropout: bool = True) -> int:
    """Bytes that a layer like GPT-3's keeps for backward in half precision, its input counted and its result not.

    34·s·b·h + 5·a·s²·b of Korthikanti et al. 2022 and the 16·s·b of LayerNorm's numbers: two LayerNorms, one Linear for
    query, key and value, softmax, an MLP of 4·h with a GELU that is one operator. ``attention`` is ``"eager"``, or
    ``"flash"``, which keeps a number for each row of scores in their place. Without dropout its masks and copies are
    not kept. Requested bytes. Raises ``ValueError`` for another attention.
    """
    if attention not in ("eager", "flash"):
        raise ValueError(f"gpt_layer knows eager and flash attention; {attention!r} was given")
    tokens, scores = batch * length, batch * heads * length**2
    kept = (34 if dropout else 32) * tokens * hidden + 16 * tokens
    if attention == "flash":
        return kept + 4 * tokens * heads + 24  # and the state of the random numbers
    return kept + (5 if dropout else 2) * scores


@_of_counts
def gpt_layer_of_a_rank(
    batch: int,
    length: int,
    hidden: int,
    heads: int,
    ranks: int,
    attention: str = "flash",
    sequence: bool = False,
) -> int:
    """Bytes that a layer like GPT-3's keeps on one rank of ``ranks``, cut by tensor parallel; else as `gpt_layer`.

    s·b·h·(10 + 24/t) + 5·a·s²·b/t of Korthikanti et al. 2022, t = ``ranks``: inputs of norms and of Linears, and the
    masks behind attention and MLP, are whole on every rank. With ``sequence`` parallel as PyTorch's DTensor does it
    s·b·h·(4 + 30/t) + 5·a·s²·b/t: all is cut but the gathered inputs of the Linears, which the paper gathers again in
    backward (34/t). The norms' numbers are 16·s·b, with ``sequence`` 16·s·b/t. Linears without bias, or with: the same.
    Raises ``ValueError`` for another attention, and for heads or, with ``sequence``, a length that t does not divide.
    """
    if attention not in ("eager", "flash"):
        raise ValueError(f"gpt_layer_of_a_rank knows eager and flash attention; {attention!r} was given")
    if ranks < 1 or heads % ranks or (sequence and length % ranks):
        raise ValueError(f"{heads} heads and, with sequence parallel, {length} tokens are cut by ranks={ranks} evenly")
    tokens, scores = batch * length, batch * heads * length**2
    whole, cut = (4, 30) if sequence else (10, 24)
    kept = (whole * ranks + cut) * tokens * hidden // ranks + 16 * tokens // (ranks if sequence else 1)
    if attention == "flash":
        return kept + 4 * tokens * heads // ranks + 24
    return kept + 5 * scores // ranks


@_of_counts
def llama_layer(
    batch: int,
    length: int,
    hidden: int,
    heads: int,
    shared_heads: int,
    inner: int,
    head_width: int = 0,
    written_out: bool = False,
) -> int:
    """Bytes that a layer like Llama's keeps for backward in bfloat16, its input counted and its result not.

    (12 + 4·g + 8·f/h)·s·b·h for f = ``inner`` and g = ``shared_heads / heads``, the share of heads of keys and values:
    RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases, no dropout; and 8·s·b for the two norms and
    4·a·s·b for flash attention, a GPU from Ampere on. ``head_width`` is hidden / heads if 0. ``written_out`` says
    that RMSNorm is written out as in transformers, in float32: 8·s·b·h more. With every layer checkpointed, 2·s·b·h is
    all that a layer keeps. Requested bytes, for a head width that is a multiple of 8.
    """
    tokens, width = batch * length, head_width or hidden // heads
    norms = 2 * ((6 if written_out else 2) * tokens * hidden + 4 * tokens)
    attention = 2 * tokens * (hidden + 2 * heads * width + 2 * shared_heads * width) + 4 * tokens * heads + 24
    return norms + attention + mlp(tokens, hidden, inner, "swiglu")


# Majors of the compute capability whose default cuBLAS workspace is 32 MiB, by the first torch version for
# which that holds (aten/src/ATen/cuda/CublasHandlePool.cpp; traced in 2.11 to 2.14). Others have 8.125 MiB.
_LARGE_WORKSPACE = {(2, 11): {9}, (2, 12): {9, 10, 12}, (2, 14): {9, 10, 11, 12}}


class Shares(NamedTuple):
    """What a rank holds of the model's states, in bytes; ``sum()`` of it is all three."""

    parameters: int
    gradients: int
    states: int


@_of_counts
def zero_bytes_per_rank(
    parameters: int, ranks: int, stage: int, parameter: int = 4, gradient: int = 4, states: int = 8
) -> Shares:
    """Bytes of parameters, gradients and optimizer states that one of ``ranks`` data-parallel GPUs holds.

    ``parameters`` is their number. ``stage`` 0 is plain data parallelism, 1 shards the optimizer's states, 2 the
    gradients too, 3 the parameters too (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion
    Parameter Models", section 5). ``parameter``, ``gradient`` and ``states`` are bytes of each for a parameter: 4, 4
    and 8 for AdamW in float32; 2, 2 and 12 in that paper, for half precision with a float32 copy. What is shared is
    shared evenly. It leaves out whatever lives only inside a step: activations, gathered layers, buffers. Raises
    ``ValueError`` for no rank, and for another stage than 0 to 3.
    """
    if ranks < 1:
        raise ValueError(f"zero_bytes_per_rank: one rank or more; {ranks} was given")
    if stage > 3:
        raise ValueError(f"zero_bytes_per_rank: a stage is 0, 1, 2 or 3; {stage} was given")
    sizes = (parameter, gradient, states)
    return Shares(*(-(-size * parameters // (ranks if stage >= 3 - at else 1)) for at, size in enumerate(sizes)))


def cublas_workspace(capability: tuple[int, int], torch_version: str = torch.__version__) -> int:
    """The cuBLAS workspace that each thread's first matrix multiplication takes and keeps.

    32 MiB on Hopper (9.x), and since torch 2.12 on Blackwell (10.x, 12.x); elsewhere 8.125 MiB, that is
    2 × 4096 KiB + 8 × 16 KiB. ``CUBLAS_WORKSPACE_CONFIG`` overrides it. Forward and backward run in two
    threads, so training takes it twice. Raises ``ValueError`` outside torch 2.11 to 2.14: later versions
    give it back after each multiplication.
    """
    version = tuple(int(part) for part in torch_version.split(".")[:2])
    if not (2, 11) <= version <= (2, 14):
        raise ValueError(f"the rule is known for torch 2.11 to 2.14; {torch_version} was given")
    majors = _LARGE_WORKSPACE[max(known for known in _LARGE_WORKSPACE if known <= version)]
    return 32 * MIB if capability[0] in majors else 2 * 4096 * 1024 + 8 * 16 * 1024


@_of_counts
def column_sum_scratch(
    rows: int, columns: int, multiprocessors: int, threads: int = 2048, expanded: bool = False
) -> tuple[int, int]:
    """``(staging buffer, semaphores)`` that summing ``[rows, columns]`` float32 over its rows takes.

    It is the gradient of a Linear's bias. ``multiprocessors`` and ``threads`` (per multiprocessor) are the
    GPU's. ``expanded`` says that the matrix is one number expanded (all strides 0), as the gradient of
    ``y.sum()`` is. ``(0, 0)`` when one thread block can finish a column. Both are freed once the kernel is
    launched. The rule is ``setReduceConfig`` in
    aten/src/ATen/native/cuda/Reduce.cuh, for a contiguous matrix below 2**31 bytes with more than one column.
    """
    vector = 1 if expanded else next(v for v in (4, 2, 1) if columns % v == 0)
    limit = 512 // vector
    wide, high = (min(_power_of_two(n), limit) for n in (columns // vector, rows))
    width = min(wide, 32)
    height = min(high, limit // width)
    width = min(wide, limit // height)
    per_thread = rows
    across = rows >= min(16 * height, 256)  # the threads of one block share a column
    if across:
        per_thread = ceil(rows / height)
    grid = ceil(ceil(columns / vector) / (width if across else width * height))
    at_once = multiprocessors * (threads // (width * height))
    if not across or per_thread < 256 or grid > at_once:
        return 0, 0
    blocks = max(min(ceil(at_once / grid), ceil(per_thread / 16)), ceil(per_thread / 256))
    if blocks == 1:
        return 0, 0
    return 4 * columns * blocks * width * vector, 4 * grid


def _power_of_two(n: int) -> int:
    """The largest power of two that is not above ``n`` (1 for 0)."""
    return 1 << (max(n, 1).bit_length() - 1)


class Roofline(NamedTuple):
    """The least seconds that an operator takes, and what it waits for: ``"compute"``, ``"memory"`` or ``"host"``."""

    seconds: float
    bound: str


def roofline(flop: float, nbytes: float, peak: float, bandwidth: float, launch: float = 0.0) -> Roofline:
    """A lower bound of an operator's time: the longest of its arithmetic, its bytes, and the host's work to launch it.

    ``flop`` operations at ``peak`` a second, ``nbytes`` read and written at ``bandwidth`` a second, and ``launch``
    seconds of the host, where it issues one operator after another. It holds for tensors larger than the caches, at
    rates that the GPU reaches with large ones; tiles that are not full make a product slower. For a step of many
    operators add up each of the three first: the host runs ahead. Raises ``ValueError`` for a rate that is not positive
    and a size that is negative.
    """
    if not (peak > 0 and bandwidth > 0 and min(flop, nbytes, launch) >= 0):
        raise ValueError(f"roofline: rates above 0 and sizes of 0 or more; {flop, nbytes, peak, bandwidth, launch}")
    times = {"compute": flop / peak, "memory": nbytes / bandwidth, "host": launch}
    bound = max(times, key=times.__getitem__)
    return Roofline(times[bound], bound)
