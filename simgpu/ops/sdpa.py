"""F.scaled_dot_product_attention on the simulated GPU: the backend that CUDA selects, and its preprocessing of the
inputs.

The choice follows aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (select_sdp_backend), and the rest follows
attention.cpp (scaled_dot_product_attention). What the chosen operators allocate is in `ops/attention_scratch.py`.
"""

import os
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend

from simgpu.device import machine as machines
from simgpu.errors import OTHER_ENGINE, NotModelledError
from simgpu.handlers import handles
from simgpu.ops.dispatcher import cuda_composite, simulated
from simgpu.storage import storage_map

_aten = torch.ops.aten

HALF = (torch.float16, torch.bfloat16)
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
