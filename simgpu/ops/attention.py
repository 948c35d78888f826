"""Attention: which fused kernel CUDA chooses, what it allocates, and the decomposition without one."""

import os
from math import ceil, prod
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend

from simgpu.device import machine as machines
from simgpu.errors import OTHER_ENGINE, NotModelledError
from simgpu.gpus.specs import Spec
from simgpu.handlers import handles
from simgpu.ops.dispatcher import cuda_composite, simulated
from simgpu.ops.op_call import OpCall, rule
from simgpu.ops.reductions import reduce
from simgpu.storage import storage_map

# Rules for the kernels of scaled dot product attention, forward and backward.
# cuDNN's engines allocate a workspace whose size is known only on a GPU, so it is not modelled. In the shapes below,
# batch, heads, length and size are those of the query [B, H, L, D], and keys and value_size those of key and value.

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


# F.scaled_dot_product_attention on the simulated GPU: the backend that CUDA selects, and its preprocessing of the
# inputs.
# The choice follows aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (select_sdp_backend), and the rest follows
# attention.cpp (scaled_dot_product_attention). What the chosen operators allocate is in `ops/attention.py`.

_aten = torch.ops.aten

LATEST = (12, 1)  # highest compute capability for which the fused kernels of these versions are built
NAMES = {
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "memory-efficient",
    SDPBackend.CUDNN_ATTENTION: "cuDNN",
}
MOST_HEADS = 65535  # also the largest batch, for cuDNN (check_cudnn_tensor_shapes)


class Call(NamedTuple):
    """Holds the arguments that the choice depends on."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    grouped: bool  # enable_gqa

    @property
    def tensors(self):
        return self.query, self.key, self.value

    @property
    def dtype(self) -> torch.dtype:
        return self.query.dtype

    def wants_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.tensors)


def choose(call: Call, machine: machines.Machine) -> SDPBackend:
    """Returns the backend that PyTorch's CUDA build uses. Raises RuntimeError if every one is disabled or unusable."""
    enabled = {
        SDPBackend.CUDNN_ATTENTION: torch._C._get_cudnn_sdp_enabled(),
        SDPBackend.FLASH_ATTENTION: torch._C._get_flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: torch._C._get_mem_efficient_sdp_enabled(),
        SDPBackend.MATH: torch._C._get_math_sdp_enabled(),
    }
    if not any(enabled.values()):
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found. "
            "This is likely due to turning off both the math kernel and the fused kernels."
        )
    for backend in order(machine):
        if enabled.get(backend) and fits(backend, call, machine):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def order(machine: machines.Machine) -> list[SDPBackend]:
    """Returns the backends by priority: as set by `sdpa_kernel(..., set_priority=True)`, or PyTorch's default.

    With the cuDNN of the PyPI wheels (> 9.15), cuDNN comes first on compute capability 9 and 10, unless
    TORCH_CUDNN_SDPA_DEPRIORITIZED=1 (check_prefer_cudnn_attention).
    """
    chosen = [SDPBackend(number) for number in torch._C._get_sdp_priority_order()]
    default = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]
    if chosen[:4] != default:
        return chosen
    prefers_cudnn = machine.spec.compute_capability[0] in (9, 10)
    if prefers_cudnn and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1":
        return [default[3], *default[:3]]
    return default


def fits(backend: SDPBackend, call: Call, machine: machines.Machine) -> bool:
    """Returns whether a backend can run this call (can_use_*_attention)."""
    return not refusal(backend, call, machine)


def refusal(backend: SDPBackend, call: Call, machine: machines.Machine) -> str:
    """Returns why a backend cannot run this call, or "" if it can (can_use_*_attention)."""
    if backend == SDPBackend.MATH:
        return ""
    checks = {
        SDPBackend.FLASH_ATTENTION: flash_refuses,
        SDPBackend.EFFICIENT_ATTENTION: efficient_refuses,
        SDPBackend.CUDNN_ATTENTION: cudnn_refuses,
    }
    if backend not in checks:
        return "not a backend of CUDA"
    if any(tensor.dim() != 4 for tensor in call.tensors):
        return f"query, key and value need 4 dimensions, and the query has {call.query.dim()}"
    if call.query.shape[2] == 0 or call.key.shape[2] == 0:
        return "the query or the key has length 0"
    return checks[backend](call, machine)


def why_math(call: Call, machine: machines.Machine) -> str:
    """Returns why each fused backend cannot run a call that the math backend runs: "flash: …; memory-efficient: …"."""
    enabled = {
        SDPBackend.FLASH_ATTENTION: torch._C._get_flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: torch._C._get_mem_efficient_sdp_enabled(),
        SDPBackend.CUDNN_ATTENTION: torch._C._get_cudnn_sdp_enabled(),
    }
    said = []
    for backend, name in NAMES.items():
        reason = refusal(backend, call, machine) if enabled[backend] else "switched off"
        said.append(f"{name}: {reason or 'math has priority'}")
    return "; ".join(said)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def one_dtype_of(call: Call, dtypes) -> bool:
    return call.dtype in dtypes and all(tensor.dtype == call.dtype for tensor in call.tensors)


def heads_fit(call: Call, may_group: bool, key_as_value: bool = True) -> bool:
    """Returns whether batch sizes and head counts are equal; keys and values may have fewer heads if `may_group`.

    (check_batch_size_and_num_heads)
    """
    if len({tensor.shape[0] for tensor in call.tensors}) > 1:
        return False
    query, key, value = (tensor.shape[1] for tensor in call.tensors)
    if not (call.grouped and may_group):
        return query == key == value
    if key_as_value and key != value:
        return False
    return query % key == 0 and query % value == 0


def dense_last(call: Call, one_is_dense: bool) -> bool:
    """Returns whether the last dim of inputs and mask has stride 1; with `one_is_dense`, head size 1 always passes."""
    if not (one_is_dense and call.query.shape[-1] == 1) and any(tensor.stride(-1) != 1 for tensor in call.tensors):
        return False
    return call.mask is None or call.mask.stride(-1) == 1


def shapes_refuse(call: Call, may_group: bool, one_is_dense: bool, key_as_value: bool = True) -> str:
    """Returns why a kernel refuses batches, heads or strides, or "" if it does not."""
    if not heads_fit(call, may_group, key_as_value):
        heads = ", ".join(str(tensor.shape[1]) for tensor in call.tensors)
        return f"the batches or heads of query, key and value differ ({heads} heads)"
    if not dense_last(call, one_is_dense):
        return "the last dimension is not contiguous"
    return ""


def flash_refuses(call: Call, machine: machines.Machine) -> str:
    capability = machine.spec.compute_capability
    size = call.query.shape[-1]
    if call.mask is not None:
        return "it takes no attn_mask"
    if size > 256 or {call.key.shape[-1], call.value.shape[-1]} != {size}:
        sizes = ", ".join(str(tensor.shape[-1]) for tensor in call.tensors)
        return f"head sizes must be equal and at most 256, not {sizes}"
    if not (8, 0) <= capability <= LATEST:
        return f"it needs compute capability 8.0, and {machine.spec.key} has {capability[0]}.{capability[1]}"
    if not one_dtype_of(call, HALF):
        return f"it takes float16 and bfloat16, not {_named(call.dtype)}"
    little_shared_memory = (8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)
    if little_shared_memory and call.wants_gradient() and (192 < size <= 224 or (size > 224 and call.dropout > 0)):
        return f"it has no gradient for heads of size {size} on compute capability {capability[0]}.{capability[1]}"
    if call.causal and call.query.shape[-2] != call.key.shape[-2]:
        return "with is_causal it needs as many queries as keys"
    return shapes_refuse(call, may_group=True, one_is_dense=True)


def efficient_refuses(call: Call, machine: machines.Machine) -> str:
    capability = machine.spec.compute_capability
    if not (5, 0) <= capability <= LATEST:
        return f"it needs compute capability 5.0 to {LATEST[0]}.{LATEST[1]}"
    align = alignment(call.dtype, capability)
    size, value_size = call.query.shape[-1], call.value.shape[-1]
    if size != call.key.shape[-1] or any(n % align or n == 0 for n in (size, value_size)):
        return f"head sizes must be equal multiples of {align}, not {size} and {value_size}"
    reads_aligned = capability >= (8, 0) and machine.torch_version >= (2, 13)
    if reads_aligned and any(tensor.storage_offset() % align for tensor in call.tensors):
        return "an input is not aligned to 16 bytes"  # blocks are aligned, so the offset into a block decides
    if refused := shapes_refuse(call, may_group=False, one_is_dense=False):
        return refused
    dtypes = (torch.float16, torch.float32, torch.bfloat16)[: 3 if capability >= (8, 0) else 2]
    if not one_dtype_of(call, dtypes):
        given = " and ".join(_named(one) for one in dtypes)
        return f"it takes {given} on compute capability {capability[0]}.{capability[1]}, not {_named(call.dtype)}"
    return ""


def alignment(dtype: torch.dtype, capability: tuple[int, int]) -> int:
    """Returns the number that memory-efficient attention requires head sizes to be a multiple of
    (minimum_gemm_alignment).
    """
    half = dtype in HALF
    tensor_cores = capability[0] >= 8 or (capability[0] >= 7 and half)
    least = 4 if capability[0] >= 8 else 1
    return max(least, 8 if half else 4) if tensor_cores else least


def cudnn_refuses(call: Call, machine: machines.Machine) -> str:
    capability, version = machine.spec.compute_capability, machine.torch_version
    if not (8, 0) <= capability <= LATEST:
        return f"it needs compute capability 8.0, and {machine.spec.key} has {capability[0]}.{capability[1]}"
    if not one_dtype_of(call, HALF):
        return f"it takes float16 and bfloat16, not {_named(call.dtype)}"
    if not mask_fits_cudnn(call):
        return "the attn_mask requires a gradient, or its shape does not broadcast"
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return "deterministic algorithms are wanted"
    if version >= (2, 12) and (16 * call.dropout) % 1:
        return f"dropout must be a multiple of 1/16, not {call.dropout:g}"
    batch, heads, queries, size = call.query.shape
    keys, value_size = call.key.shape[2], call.value.shape[3]
    if max(batch, heads) > MOST_HEADS or keys == 1 or (queries == 1 and call.dropout):
        return "the batch or the heads are too many, or there is one key, or one query with dropout"
    limit = 128
    if capability == (9, 0) or (capability[0] == 10 and version >= (2, 14)):
        limit = 256
    elif capability[0] == 10 and (size, value_size) == (192, 128):
        limit = 192
    if size % 8 or value_size % 8 or max(size, value_size) > limit:
        return f"head sizes must be multiples of 8 and at most {limit}, not {size} and {value_size}"
    return shapes_refuse(call, may_group=True, one_is_dense=True, key_as_value=False)


def mask_fits_cudnn(call: Call) -> bool:
    """Returns whether cuDNN accepts the shape of the mask (check_attn_mask_shape)."""
    if call.mask is None:
        return True
    if call.mask.requires_grad or call.mask.dim() not in (2, 4):
        return False
    batch, heads, queries, _ = call.query.shape
    whole = (batch, heads, queries, call.key.shape[2])[-call.mask.dim() :]
    return all(n in (1, m) for n, m in zip(call.mask.shape, whole, strict=True))


@handles(torch._fused_sdp_choice)
def fused_choice(mode, function, args, kwargs):
    """Wraps torch._fused_sdp_choice, so that it returns the number of the backend that CUDA would choose."""
    if not storage_map.on_current(args[0]):
        return function(*args, **kwargs)
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, **dict(zip(names, args, strict=False)), **kwargs}
    query, key, value, mask, dropout, causal = (given[name] for name in names)
    call = Call(query, key, value, mask, dropout, causal, given.get("enable_gqa", False))
    return choose(call, machines.on()).value


@handles(torch.nn.functional.scaled_dot_product_attention)
def of_nested_tensors(mode, function, args, kwargs):
    """Wraps F.scaled_dot_product_attention: raises NotModelledError for nested tensors.

    For these PyTorch chooses the backend in Python by the device. In the transforms of torch.func the branch runs here.
    """
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    if any(one.is_nested and one.layout is torch.jagged and storage_map.on_gpu(one) for one in tensors):
        raise NotModelledError(
            "the simulated GPU does not model scaled_dot_product_attention of nested tensors: pad them "
            f"(torch.nested.to_padded_tensor) and give a mask. {OTHER_ENGINE}"
        )
    transformed = torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
    if transformed and simulated((*args, *kwargs.values())):
        return scaled_dot_product_attention(*args, **kwargs)  # torch.func's transforms do not call autograd's kernel
    return function(*args, **kwargs)


@cuda_composite("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    """Decomposes scaled_dot_product_attention as it runs on CUDA (attention.cpp)."""
    check_arguments(query, key, value, attn_mask, is_causal)
    call = Call(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if machines.on().torch_version >= (2, 12) and not all(tensor.numel() for tensor in call.tensors):
        return of_nothing(call)
    backend = choose(call, machines.on())
    mask = additive(attn_mask, query.dtype)
    if backend == SDPBackend.CUDNN_ATTENTION:
        lse = call.wants_gradient()
        options = mask, lse, dropout_p, is_causal, False
        out = output_of(_aten._scaled_dot_product_cudnn_attention, *call.tensors, *options, scale=scale)
        return out if all(tensor.numel() for tensor in call.tensors) else None  # torch 2.11: an undefined tensor
    if backend == SDPBackend.FLASH_ATTENTION:
        size = value.shape[-1]
        scale = size**-0.5 if scale is None else scale
        padded = [padded_to_eight(tensor) for tensor in call.tensors]
        out = output_of(_aten._scaled_dot_product_flash_attention, *padded, dropout_p, is_causal, False, scale=scale)
        return out if out.shape[-1] == size else out[..., :size]
    if backend == SDPBackend.EFFICIENT_ATTENTION:
        if mask is not None:
            mask = aligned(mask).expand(*query.shape[:3], key.shape[2])
        lse = call.wants_gradient() or (torch.is_grad_enabled() and mask is not None and mask.requires_grad)
        return output_of(
            _aten._scaled_dot_product_efficient_attention, *call.tensors, mask, lse, dropout_p, is_causal, scale=scale
        )
    if machines.on().before_memory is not None:
        machines.on().math_attention[why_math(call, machines.on())] += 1
    return in_plain_operators(call._replace(mask=mask), scale)[0]


def of_nothing(call: Call) -> torch.Tensor:
    """Returns zeros if query, key or value has no elements; no attention kernel runs.

    0 times the sums of all three is added, so that each gets its gradient. The order is that of the oracle's trace,
    torch 2.13; C++ destroys the zeros last.
    """
    query, key, value = call.tensors
    zeros = query.new_zeros(*query.shape[:-1], value.shape[-1])
    sums = [query.sum(), key.sum(), value.sum()]
    sums.append(sums[0] + sums[1])
    sums.append(sums[3] + sums[2])
    sums.append(_aten.mul.Scalar(sums[4], 0))
    out = zeros + sums[5]
    del sums
    return out


def output_of(operator, *args, scale) -> torch.Tensor:
    """Returns the first result of an operator and frees the others in order, as C++ destroys a std::tuple."""
    results = list(operator(*args, scale=scale))
    output = results.pop(0)
    while results:
        results.pop(0)
    return output


def check_arguments(query, key, value, mask, causal) -> None:
    """Raises RuntimeError for arguments that attention.cpp refuses (validate_sdpa_input)."""
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got "
            f"query.dtype: {query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be  at least 2 dimensional, but got "
            f"query.dim: {query.dim()} key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if mask is None:
        return
    if causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {mask.dtype} and  query.dtype: {query.dtype} instead."
        )


def additive(mask, dtype: torch.dtype):
    """Returns a boolean mask as one that is added to the scores: 0 if it is true, -inf elsewhere."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=dtype, device="meta"))


def aligned(mask: torch.Tensor) -> torch.Tensor:
    """Returns a mask that memory-efficient attention can read: row strides a multiple of 8, else a wider copy
    (pad_bias).
    """
    if mask.stride(-1) == 1 and not any(stride % 8 for stride in mask.stride()[:-1]):
        return mask
    keys = mask.shape[-1]
    return torch.constant_pad_nd(mask, (0, 8 - keys % 8))[..., :keys]


def padded_to_eight(tensor: torch.Tensor) -> torch.Tensor:
    """Returns heads of a size that flash attention accepts: a padded copy if it is not a multiple of 8
    (pad_last_dim).
    """
    rest = tensor.shape[-1] % 8
    return tensor if rest == 0 else torch.constant_pad_nd(tensor, (0, 8 - rest))


def in_plain_operators(call: Call, scale: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs the math backend and returns output and weights (_scaled_dot_product_attention_math).

    The half types are computed in fp32 unless that is switched off. The locals are freed in the order in which C++
    destroys them, latest first (keys and values are one tuple).
    """
    dtype, mask = call.dtype, call.mask
    full_query, full_key, full_value = call.tensors
    if dtype in HALF and not torch._C._get_math_sdp_allow_fp16_bf16_reduction():
        full_query, full_key, full_value = (tensor.float() for tensor in call.tensors)
    factor = (full_query.shape[-1] ** -0.5 if scale is None else abs(scale)) ** 0.5
    query = full_query * (-factor if scale is not None and scale < 0 else factor)
    if call.causal:
        mask = torch.ones(query.shape[-2], full_key.shape[-2], dtype=torch.bool, device="meta").tril()
        mask = additive(mask, query.dtype)
    key, value = repeated(call, full_key, full_value)
    weights = torch.matmul(query, key.transpose(-2, -1) * factor)
    if mask is not None:
        weights.add_(mask)
    weights = _aten._safe_softmax(weights, -1)
    if call.dropout > 0:
        weights = torch.dropout(weights, call.dropout, True)
    second = weights.to(dtype)
    product = torch.matmul(weights, value)
    first = product.to(dtype)
    del product, weights, key, value, query, mask, full_value, full_key, full_query
    return first, second


def repeated(call: Call, key: torch.Tensor, value: torch.Tensor):
    """Returns grouped keys and values repeated to one head per query head, as the math backend requires.

    Raises RuntimeError if their heads do not divide the query heads.
    """
    heads = call.query.shape[-3]
    if not call.grouped or heads == key.shape[-3] == value.shape[-3]:
        return key, value
    if heads % key.shape[-3] or heads % value.shape[-3]:
        raise RuntimeError("Number of heads in key and value must divide the number of heads in ")
    return tuple(tensor.repeat_interleave(heads // tensor.shape[-3], -3) for tensor in (key, value))
