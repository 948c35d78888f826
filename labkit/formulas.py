"""Estimates memory and time by plain arithmetic, without making a tensor or reading a counter.

Every size is in bytes, and every parameter count is a number of elements. Values that are not counts are refused. If a
rule depends on the GPU or the version of torch, its docstring says so.
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

from labkit.units import MiB, whole_bytes

MIN_BLOCK_SIZE = 512  # kMinBlockSize, c10/core/AllocatorConfig.h
SMALL_SIZE = MiB  # kSmallSize: requests up to this size are served from the small pool
SMALL_BUFFER = 2 * MiB  # kSmallBuffer; kRoundLarge has the same value
LARGE_BUFFER = 20 * MiB  # kLargeBuffer, since torch 2.11 the option large_segment_size_mb
MIN_LARGE_ALLOC = 10 * MiB  # kMinLargeAlloc: from this size on a request gets a segment of its own size


def _of_counts(formula: Callable) -> Callable:
    """Wraps a formula so that it refuses arguments annotated ``int`` that are not counts (``TypeError``,
    ``ValueError``).
    """
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
    """Returns the block size for a request of ``nbytes``, rounded up to a multiple of 512 B (0 for 0).

    It holds for the allocator's default settings (no ``roundup_power2_divisions``). It excludes the remainder of at
    most 1 MiB that may stay with a large block. Raises ``ValueError`` for a negative size.
    """
    if whole_bytes(nbytes) < 0:
        raise ValueError(f"a request has a size of 0 bytes or more, not {nbytes}")
    return -(-whole_bytes(nbytes) // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE


def segment(nbytes: int) -> int:
    """Returns the size of the segment that the allocator requests from CUDA when no free block can serve ``nbytes``.

    It is 2 MiB in the small pool (requests up to 1 MiB), 20 MiB for requests below 10 MiB, and otherwise the request
    rounded up to a multiple of 2 MiB.
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
    """Returns the block size of a dense tensor of this shape; ``tensor()`` is a scalar, 512 B."""
    return block(prod(shape) * dtype.itemsize)


@_of_counts
def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Counts the parameters of a Linear layer: a weight ``[outputs, inputs]`` and a bias ``[outputs]``."""
    return inputs * outputs + bias * outputs


@_of_counts
def conv2d(channels_in: int, channels_out: int, kernel: int, bias: bool = True, groups: int = 1) -> int:
    """Counts the parameters of a square Conv2d: a weight ``[out, in / groups, kernel, kernel]`` and a bias ``[out]``.

    Raises ``ValueError`` unless ``groups`` divides both channel counts.
    """
    if groups < 1 or channels_in % groups or channels_out % groups:
        raise ValueError(f"conv2d: groups divides the channels, {channels_in} and {channels_out}; {groups} was given")
    return channels_out * (channels_in // groups) * kernel * kernel + bias * channels_out


@_of_counts
def norm(features: int) -> int:
    """Counts the parameters of a BatchNorm or LayerNorm over ``features``: a scale and a shift."""
    return 2 * features


@_of_counts
def embedding(entries: int, features: int) -> int:
    """Counts the parameters of an Embedding: one table ``[entries, features]``."""
    return entries * features


@_of_counts
def attention(features: int, bias: bool = True) -> int:
    """Counts the parameters of multi-head attention, whose query, key, value and output are Linears of ``features``."""
    return 4 * linear(features, features, bias)


def parameters(model: torch.nn.Module) -> int:
    """Returns the bytes of the blocks of all parameters, counting tied ones once. Their gradients allocate the same."""
    return sum(block(p.numel() * p.element_size()) for p in model.parameters())


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


@_of_counts
def optimizer(name: str, parameter_bytes: int) -> tuple[int, int]:
    """Returns ``(state, temporary)`` of the named optimizer, in bytes.

    State and temporaries have the parameters' dtype, so each is a multiple of the parameters' size. Raises
    ``ValueError`` for an unknown name and lists the known ones.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"known optimizers are {', '.join(OPTIMIZERS)}; {name!r} was given")
    cost = OPTIMIZERS[name]
    return cost.state * parameter_bytes, cost.temporary * parameter_bytes


@_of_counts
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
    """Returns the bytes that an encoder layer like BERT's saves for backward in float32.

    The input is counted and the result is not. The layer has query, key, value and output Linears of ``hidden``,
    softmax attention with ``heads`` heads, a Linear to ``inner``, GELU, a Linear back, two LayerNorms and two
    residuals, before or after the norms. ``attention`` is ``"eager"`` (operator by operator) or ``"sdpa"``, which
    selects the memory-efficient kernel in float32. ``dropout`` says that dropout is active, after both blocks and on
    the normalised attention scores. Raises ``ValueError`` for any other ``attention``.
    """
    if attention not in ("eager", "sdpa"):
        raise ValueError(f"encoder_layer knows eager and sdpa attention; {attention!r} was given")
    wide, narrow = tensor(batch, length, inner), tensor(batch, length, hidden)
    weights = tensor(batch, heads, length, length)
    kept = 8 * narrow + 2 * wide + 4 * tensor(batch, length)
    # one logsumexp per query, rounded up to 32
    kept += weights if attention == "eager" else tensor(batch, heads, -(-length // 32) * 32)
    if dropout:
        kept += 2 * tensor(batch, length, hidden, dtype=torch.bool)
    if dropout and attention == "eager":
        kept += weights + tensor(batch, heads, length, length, dtype=torch.bool)
    return kept


@_of_counts
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


@_of_counts
def best_group(layers: int, kept: int, held: int) -> int:
    """Returns the layers per checkpoint for which :func:`checkpointed` is lowest.

    It is the divisor of ``layers`` near √(layers · held / kept). Raises ``ValueError`` for 0 layers.
    """
    if layers < 1:
        raise ValueError("best_group: one layer or more")
    divisors = [k for k in range(1, layers + 1) if layers % k == 0]
    return min(divisors, key=lambda k: checkpointed(layers, k, kept, held))


@_of_counts
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
    """Returns the bytes that softmax attention saves for backward in addition to query, key and value.

    There are ``heads`` heads of ``width`` elements. ``fused`` means the memory-efficient, flash or cuDNN kernel, which
    saves the result and 4 B per query and head. Otherwise the operators run one by one (transformers' eager attention)
    and the normalised scores are saved; with dropout its mask (1 B per score) and its result are saved too. ``upcast``
    says that softmax runs in float32 and its result is converted back, as in LLaMA. The figure is in requested bytes,
    without an attention mask. The memory-efficient kernel rounds the queries up to a multiple of 32, and flash and
    cuDNN save up to 24 B of random-number state.
    """
    result = itemsize * batch * heads * length * width
    if fused:
        return result + 4 * batch * heads * length
    weights = max(itemsize, 4) if upcast else itemsize
    after = 1 + itemsize if dropout else itemsize if upcast and itemsize < 4 else 0
    return result + (weights + after) * batch * heads * length * length


# The number of tensors of the inner width that an MLP saves: those of the activation, and the input of the last Linear.
INNER_TENSORS = {"relu": 1, "gelu": 2, "silu": 2, "swiglu": 4, "gelu written out": 5}


@_of_counts
def mlp(tokens: int, width: int, inner: int, activation: str = "gelu", itemsize: int = 2) -> int:
    """Returns the bytes that the MLP of a transformer (Linear, activation, Linear) saves for backward, with its input.

    ``"relu"``, ``"gelu"`` and ``"silu"`` are one operator. ``"swiglu"`` is ``down(silu(gate(x)) * up(x))``, and ``"gelu
    written out"`` is the formula with tanh, operator by operator. The figure is in requested bytes, for one dtype of
    ``itemsize`` bytes and no dropout. Raises ``ValueError`` for any other activation.
    """
    if activation not in INNER_TENSORS:
        raise ValueError(f"mlp knows {', '.join(INNER_TENSORS)}; {activation!r} was given")
    return itemsize * tokens * (width + INNER_TENSORS[activation] * inner)


@_of_counts
def gpt_layer(batch: int, length: int, hidden: int, heads: int, attention: str = "eager", dropout: bool = True) -> int:
    """Returns the bytes that a layer like GPT-3's saves for backward in half precision.

    The input is counted and the result is not. The formula is 34·s·b·h + 5·a·s²·b (Korthikanti et al. 2022), plus
    16·s·b for the mean and rstd of LayerNorm. The layer has two LayerNorms, one Linear for query, key and value,
    softmax, and an MLP of 4·h whose GELU is one operator. ``attention`` is ``"eager"``, or ``"flash"``, which saves one
    logsumexp per query and head in place of the scores. Without dropout its masks and copies are not saved. The figure
    is in requested bytes. Raises ``ValueError`` for any other ``attention``.
    """
    if attention not in ("eager", "flash"):
        raise ValueError(f"gpt_layer knows eager and flash attention; {attention!r} was given")
    tokens, scores = batch * length, batch * heads * length**2
    kept = (34 if dropout else 32) * tokens * hidden + 16 * tokens
    if attention == "flash":
        return kept + 4 * tokens * heads + 24  # and the random-number state
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
    """Returns the bytes that one of ``ranks`` ranks saves for a layer like GPT-3's under tensor parallelism.

    Otherwise it is as `gpt_layer`. The formula is s·b·h·(10 + 24/t) + 5·a·s²·b/t (Korthikanti et al. 2022), with t =
    ``ranks``: the inputs of norms and Linears, and the dropout masks after attention and MLP, are whole on every rank.
    ``sequence`` adds sequence parallelism as PyTorch's DTensor does it, s·b·h·(4 + 30/t) + 5·a·s²·b/t. Then everything
    is sharded except the gathered inputs of the Linears, which the publication gathers again in backward (34/t). The
    norms' mean and rstd add 16·s·b, or 16·s·b/t with ``sequence``. Biases of the Linears make no difference. Raises
    ``ValueError`` for any other ``attention``, and for heads or (with ``sequence``) a length that t does not divide.
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
    """Returns the bytes that a layer like Llama's saves for backward in bfloat16.

    The input is counted and the result is not. The formula is (12 + 4·g + 8·f/h)·s·b·h with f = ``inner`` and g =
    ``shared_heads / heads``, the ratio of key and value heads to query heads. It covers RMSNorm, rotary positions,
    grouped-query attention and SwiGLU, without biases or dropout. The two norms add 8·s·b, and flash attention (a GPU
    from Ampere on) adds 4·a·s·b. ``head_width`` is hidden / heads if 0. ``written_out`` says that RMSNorm is written
    out in float32 as in transformers, which adds 8·s·b·h. If every layer is checkpointed, a layer saves only 2·s·b·h.
    The figure is in requested bytes, for a head width that is a multiple of 8.
    """
    tokens, width = batch * length, head_width or hidden // heads
    norms = 2 * ((6 if written_out else 2) * tokens * hidden + 4 * tokens)
    attention = 2 * tokens * (hidden + 2 * heads * width + 2 * shared_heads * width) + 4 * tokens * heads + 24
    return norms + attention + mlp(tokens, hidden, inner, "swiglu")


# Major compute capabilities whose default cuBLAS workspace is 32 MiB, by the first torch version with that rule
# (aten/src/ATen/cuda/CublasHandlePool.cpp; traced in 2.11 to 2.14). On all others it is 8.125 MiB.
_LARGE_WORKSPACE = {(2, 11): {9}, (2, 12): {9, 10, 12}, (2, 14): {9, 10, 11, 12}}


class Shares(NamedTuple):
    """Holds a rank's share of the model's states, in bytes; its ``sum()`` is all three."""

    parameters: int
    gradients: int
    states: int


@_of_counts
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


def cublas_workspace(capability: tuple[int, int], torch_version: str = torch.__version__) -> int:
    """Returns the bytes of the cuBLAS workspace that each thread's first matmul allocates and keeps.

    It is 32 MiB on Hopper (9.x), and since torch 2.12 on Blackwell (10.x, 12.x). Elsewhere it is 8.125 MiB, that is 2 ×
    4096 KiB + 8 × 16 KiB. ``CUBLAS_WORKSPACE_CONFIG`` overrides it. Forward and backward run in two threads, so
    training allocates it twice. Raises ``ValueError`` outside torch 2.11 to 2.14, because later versions free it after
    each matmul.
    """
    version = tuple(int(part) for part in torch_version.split(".")[:2])
    if not (2, 11) <= version <= (2, 14):
        raise ValueError(f"the rule is known for torch 2.11 to 2.14; {torch_version} was given")
    majors = _LARGE_WORKSPACE[max(known for known in _LARGE_WORKSPACE if known <= version)]
    return 32 * MiB if capability[0] in majors else 2 * 4096 * 1024 + 8 * 16 * 1024


@_of_counts
def column_sum_scratch(
    rows: int, columns: int, multiprocessors: int, threads: int = 2048, expanded: bool = False
) -> tuple[int, int]:
    """Returns ``(staging buffer, semaphores)`` in bytes, which a sum of a float32 ``[rows, columns]`` over its rows
    allocates.

    This sum is the gradient of a Linear's bias. ``multiprocessors`` and ``threads`` (per multiprocessor) are the GPU's.
    ``expanded`` says that the matrix is one element expanded (all strides 0), as is the gradient of ``y.sum()``.
    Returns ``(0, 0)`` if one thread block can finish a column. Both are freed once the kernel is launched. The rule is
    ``setReduceConfig`` in aten/src/ATen/native/cuda/Reduce.cuh, for a contiguous matrix below 2**31 bytes with more
    than one column.
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
    """Returns the largest power of two that is not above ``n`` (1 for 0)."""
    return 1 << (max(n, 1).bit_length() - 1)


class Roofline(NamedTuple):
    """Holds the least seconds that an operator takes, and its bottleneck: ``"compute"``, ``"memory"`` or ``"host"``."""

    seconds: float
    bound: str


def roofline(flop: float, nbytes: float, peak: float, bandwidth: float, launch: float = 0.0) -> Roofline:
    """Returns a lower bound of an operator's time: the maximum over its arithmetic, its bytes, and its launch by the
    host.

    ``flop`` is the number of operations, and ``peak`` the rate per second. ``nbytes`` are read and written at
    ``bandwidth`` bytes per second, and ``launch`` is the host's time in seconds if it issues one operator after
    another. The bound holds for tensors larger than the caches, at rates that the GPU reaches with large ones; partly
    filled tiles make a matmul slower. For a step of many operators, add up each of the three first, because the host
    runs ahead. Raises ``ValueError`` for a rate that is not positive or a size that is negative.
    """
    if not (peak > 0 and bandwidth > 0 and min(flop, nbytes, launch) >= 0):
        raise ValueError(f"roofline: rates above 0 and sizes of 0 or more; {flop, nbytes, peak, bandwidth, launch}")
    times = {"compute": flop / peak, "memory": nbytes / bandwidth, "host": launch}
    bound = max(times, key=times.__getitem__)
    return Roofline(times[bound], bound)
