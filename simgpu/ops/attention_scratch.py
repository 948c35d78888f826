"""Rules for the kernels of scaled dot product attention, forward and backward.

cuDNN's engines allocate a workspace whose size is known only on a GPU, so it is not modelled. In the shapes below,
batch, heads, length and size are those of the query [B, H, L, D], and keys and value_size those of key and value.
"""

from math import ceil, prod
from typing import NamedTuple

import torch

from simgpu.errors import NotModelledError
from simgpu.gpus.specs import Spec
from simgpu.ops.op_call import OpCall, rule
from simgpu.ops.reductions import reduce
from simgpu.storage import storage_map

FLOAT = 4  # bytes
LITTLE_SHARED_MEMORY = 100 * 2**10  # bytes per thread block above which the larger kernels fit
HALF = (torch.float16, torch.bfloat16)


def up(n: int, multiple: int) -> int:
    """Rounds n up to a multiple."""
    return ceil(n / multiple) * multiple


def tensors_of(call: OpCall) -> list[torch.Tensor]:
    """Returns the outputs that are tensors, without lengths and the None entries for nested tensors."""
    return [output for output in call.outputs if isinstance(output, torch.Tensor)]


def deterministic() -> bool:
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def copy_heads_last(call: OpCall, tensor: torch.Tensor):
    """Allocates scratch for a copy of [B, H, L, D] if it is not contiguous as [B, L, H, D]."""
    if not tensor.transpose(1, 2).is_contiguous():
        return call.scratch_like(tensor)
    return None


@rule("_safe_softmax.default")
def softmax_of_masked_rows(call: OpCall) -> None:
    """Allocates which scores are -inf, which rows are completely -inf, and a zero.

    (aten/src/ATen/native/transformers/attention.cpp)
    """
    output = call.allocate_output()
    masked = torch.empty_like(call["self"], dtype=torch.bool)
    dim = call["dim"]
    call.scratch_like(masked)
    call.scratch(prod(size for place, size in enumerate(masked.shape) if place != dim % masked.dim()))
    reduce(call, masked, [dim], 1, 1)
    call.scratch(output.element_size())


# Flash attention: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (mha_fwd, mha_bwd)


def flash_splits(query: torch.Tensor, keys: int, multiprocessors: int) -> int:
    """Returns the number of parts into which the keys are split to keep the GPU busy.

    (num_splits_heuristic in set_params_splitkv)
    """
    batch, heads, length, size = query.shape
    columns = ceil(keys / (256 if size <= 64 else 128 if size <= 128 else 64))
    blocks, places = batch * heads * ceil(length / 64), 2 * multiprocessors
    if blocks >= 0.8 * places or not columns:
        return 1
    efficiencies = {}
    for splits in range(1, min(128, places, columns) + 1):
        if splits == 1 or ceil(columns / splits) != ceil(columns / (splits - 1)):
            waves = blocks * splits / places
            efficiencies[splits] = waves / ceil(waves)
    best = max(efficiencies.values())
    return next(splits for splits, efficiency in efficiencies.items() if efficiency >= 0.85 * best)


def flash_size(size: int) -> int:
    """Returns the head size as flash attention lays out its accumulators."""
    return up(size, 32 if size <= 128 else 64)


@rule("_scaled_dot_product_flash_attention.default")
def flash(call: OpCall) -> None:
    """Rule of _scaled_dot_product_flash_attention_cuda (attention.cu): mha_fwd for [B, H, L, D]."""
    _flash_forward(call, *call["query", "key"])


@rule("_flash_attention_forward.default")
def flash_alone(call: OpCall) -> None:
    """Rule of _flash_attention_forward (attention.cu), which PyTorch's own function calls, for [B, L, H, D] of one
    length.

    For batches of several lengths (mha_varlen_fwd) nothing was compared.
    """
    if call["cum_seq_q"] is not None:
        call.machine.unmodeled.add("aten::_flash_attention_forward", "what it takes for sequences of many lengths")
        return
    _flash_forward(call, *(one.transpose(1, 2) for one in call["query", "key"]))


def _flash_forward(call: OpCall, query: torch.Tensor, key: torch.Tensor) -> None:
    """Allocates as mha_fwd: output and log-sum-exp, partial results if the keys are split, the random-number state."""
    dropout = call["dropout_p"]
    out, lse, rng_state, unused, *_ = tensors_of(call)
    call.allocate_outputs(out, lse)
    batch, heads, length, size = query.shape
    splits = flash_splits(query, key.shape[2], call.machine.spec.multiprocessors) if dropout == 0 else 1
    partials = []
    if splits > 1:
        rows = splits * batch * heads * length
        partials = [call.scratch(rows * FLOAT), call.scratch(rows * flash_size(size) * FLOAT)]
    first = call.scratch(rng_state.nbytes) if dropout > 0 else None
    if dropout > 0:
        call.allocate_outputs(unused, rng_state)  # the state is created again when dropout draws from it
        call.release(first)
    else:
        call.allocate_outputs(rng_state, unused)
    call.release(*partials)


@rule("_scaled_dot_product_flash_attention_backward.default")
def flash_backward(call: OpCall) -> None:
    """Rule of _scaled_dot_product_flash_attention_backward_cuda (attention_backward.cu): mha_bwd for [B, H, L, D]."""
    _flash_backward(call, *call["grad_out", "query", "key", "out"])


@rule("_flash_attention_backward.default")
def flash_backward_alone(call: OpCall) -> None:
    """Rule of _flash_attention_backward (attention_backward.cu) for [B, L, H, D], see `flash_alone`."""
    if call["cum_seq_q"] is not None:
        call.machine.unmodeled.add("aten::_flash_attention_backward", "what it takes for sequences of many lengths")
        return
    _flash_backward(call, *(one.transpose(1, 2) for one in call["grad_out", "query", "key", "out"]))


def _flash_backward(call: OpCall, grad_out, query, key, out) -> None:
    """Allocates as mha_bwd: copies, the gradients, then sums in fp32.

    Gradients of keys and values that several heads share are summed afterwards.
    """
    batch, heads, length, size = query.shape
    copy_heads_last(call, grad_out)
    copy_heads_last(call, out)
    call.allocate_outputs(*call.outputs)
    rows = batch * heads * up(length, 128)
    call.scratch(rows * FLOAT)
    parts = ceil(call.machine.spec.multiprocessors / (batch * heads)) if deterministic() else 1
    call.scratch(parts * rows * flash_size(size) * FLOAT)
    if key.shape[1] != heads:
        groups = heads // key.shape[1]
        expanded = torch.empty(batch, key.shape[2], key.shape[1], groups, size, dtype=key.dtype, device="meta")
        for _ in range(2):
            call.scratch_like(expanded)
        for _ in range(2):
            reduce(call, expanded, [3], FLOAT, key.element_size())


# Memory-efficient attention: aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu


def keep_on_host(call: OpCall, *tensors) -> None:
    """Places seed and offset of memory-efficient attention on the host, where they are outside CUDA graphs."""
    for tensor in tensors:
        storage_map.bind_host_storage(tensor.untyped_storage(), call.machine, tensor.nbytes)


@rule("_scaled_dot_product_efficient_attention.default")
def efficient(call: OpCall) -> None:
    """Rule of _efficient_attention_forward: output and log-sum-exp, and sums in fp32 for large heads."""
    out, lse, seed, offset = tensors_of(call)
    call.allocate_outputs(out, lse)
    keep_on_host(call, seed, offset)
    _accumulate_in_memory(call, out)


@rule("_scaled_dot_product_efficient_attention.default", since=(2, 14))
def efficient_with_seed_first(call: OpCall) -> None:
    """Rule of _efficient_attention_forward, whose seed and offset are zeros on the GPU if dropout is 0."""
    if call["dropout_p"]:
        return efficient(call)
    out, lse, seed, offset = tensors_of(call)
    call.allocate_outputs(seed, offset, out, lse)
    return _accumulate_in_memory(call, out)


def _accumulate_in_memory(call: OpCall, out: torch.Tensor) -> None:
    query, value = call["query", "value"]
    if query.dtype in HALF and max(query.shape[3], value.shape[3]) > 128:  # the output does not fit in registers
        call.scratch(out.numel() * FLOAT)


class Kernel(NamedTuple):
    """A backward kernel of memory-efficient attention: the queries and keys per thread block, and where it accumulates.

    `in_registers` says that it accumulates the gradients of keys and values in registers.
    """

    queries: int
    keys: int
    in_registers: bool


def backward_kernel(half: bool, size: int, dropout: bool, spec: Spec) -> Kernel:
    """Returns the kernel for heads of `size`: the first in kernels/generate_kernels.py that holds them and fits.

    Which kernels fit into shared memory was found with the oracle, for capabilities 7.0, 7.5, 8.0, 8.6, 8.9, 9.0, 10.0
    and 12.0. Registers never hold fp32 gradients, but these need no separate sums either.
    """
    capability = spec.compute_capability
    roomy = spec.capability.shared_memory_per_block > LITTLE_SHARED_MEMORY
    if size <= 64:
        return Kernel(64, 64, True)
    if not half:
        return Kernel(128 if roomy else 64, 64, True)
    if size > 128:
        return Kernel(128, 64, False)
    if roomy:
        return Kernel(128, 128, True)
    if capability < (8, 0) or (capability < (9, 0) and size <= 96 and not dropout):
        return Kernel(128, 64, True)
    return Kernel(64, 64, False)


def key_splits(kernel: Kernel, pairs: int, keys: int) -> int:
    """Returns the number of thread blocks over which the keys of one of `pairs` (batch, head) are spread.

    (attention_backward.cu)
    """
    splits = ceil(keys / kernel.keys)
    if deterministic() or (pairs >= 256 and keys <= 2 * kernel.keys):
        return 1
    return splits if kernel.in_registers else max(1, min(splits, 200 // pairs))


def backward_workspace(kernel: Kernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Returns the bytes of the workspace (Params::workspace_size in mem_eff_attention/kernel_backward.h)."""
    pairs, size = query.shape[0] * query.shape[1], query.shape[3]
    sums = 0
    if not kernel.in_registers:
        rows = key_splits(kernel, pairs, key.shape[2]) * kernel.keys
        sums = rows * (up(size, kernel.queries) + up(value.shape[3], kernel.queries))
    tiles = ceil(query.shape[2] / kernel.queries) * ceil(size / kernel.keys)
    with_locks = tiles * (kernel.queries * kernel.keys + 4)
    return pairs * up(sums + with_locks, 4) * FLOAT


@rule("_scaled_dot_product_efficient_attention_backward.default")
def efficient_backward(call: OpCall) -> None:
    """Rule of _efficient_attention_backward: a copy, the gradients, the row sums, and the kernel's workspace."""
    grad_out, query, key, value, out = call["grad_out_", "query", "key", "value", "out"]
    spec = call.machine.spec
    batch, heads, length, size = query.shape
    half = query.dtype in HALF
    kernel = backward_kernel(half, max(size, value.shape[3]), call["dropout_p"] > 0, spec)
    copy_heads_last(call, grad_out)
    call.allocate_outputs(*call.outputs)
    rows = batch * heads * length
    if half and (kernel.in_registers or spec.compute_capability != (7, 0)):
        delta = call.scratch(rows * FLOAT)
    else:
        delta = row_products(call, out, rows)
    workspace = call.scratch(backward_workspace(kernel, query, key, value))
    call.release(delta, workspace)


def row_products(call: OpCall, out: torch.Tensor, rows: int):
    """Allocates scratch for the sums of grad_out * out per head, which plain operators compute in fp32, transposed."""
    casts = [call.scratch_like(out, torch.float32) for _ in range(2)] if out.dtype in HALF else []
    product = torch.empty_like(out.transpose(1, 2), dtype=torch.float32)
    held = [call.scratch_like(product), call.scratch(rows * FLOAT)]
    reduce(call, product, [3], FLOAT, FLOAT)
    if out.shape[1] == 1 or out.shape[2] == 1:
        call.release(held[0], *casts)
        return held[1]
    delta = call.scratch(rows * FLOAT)
    call.release(*reversed(held), *casts)
    return delta


# cuDNN: aten/src/ATen/native/transformers/cuda/attention.cu and aten/src/ATen/native/cudnn/MHA.cpp


@rule("_scaled_dot_product_cudnn_attention.default")
def cudnn(call: OpCall) -> None:
    """Rule of cuDNN's forward: seed and offset come first, with and without dropout.

    Without gradients lse is not allocated, and only its shape exists.
    """
    out, lse, seed, offset = tensors_of(call)
    call.allocate_outputs(seed, offset, out)
    if call["compute_log_sumexp"]:
        call.allocate_outputs(lse)
    else:
        storage_map.bind_storage(lse.untyped_storage(), call.machine, None, lse.nbytes)


@rule("_scaled_dot_product_cudnn_attention_backward.default")
def cudnn_backward(call: OpCall) -> None:
    """Rule of cuDNN's backward: gradients, and a copy of the incoming one if its last dim is not dense.

    (MHA.cpp, run_cudnn_SDP_bprop, with cuDNN 9.5.1 and later) cuDNN's front end accumulates the query's gradient in
    fp32, with one more element per row.
    """
    grad_out, query = call["grad_out", "query"]
    call.allocate_outputs(*call.outputs)
    if grad_out.stride(-1) != 1:
        call.scratch_like(grad_out)
    rows = query.numel() // query.shape[3]
    call.scratch((rows * query.shape[3] + rows) * FLOAT)


@rule("_efficient_attention_forward.default")
def bare(call: OpCall) -> None:
    """Refuses the kernel that scaled_dot_product_attention calls internally, because alone its backward's shapes are
    unknown.
    """
    raise NotModelledError(
        "the simulated GPU does not model aten._efficient_attention_forward called alone: call "
        "torch.nn.functional.scaled_dot_product_attention"
    )
