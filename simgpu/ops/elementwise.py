"""Rules for pointwise operators whose CUDA code allocates more than the outputs, or in a different order."""

import warnings

import torch

from simgpu.errors import NotModelledError
from simgpu.op_info.inplace_out_variants import resized
from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.ops.reductions import reduce_all
from simgpu.storage import storage_map

decomposition("isinf.default")  # aten/src/ATen/native/TensorCompare.cpp: abs, then a comparison
# aten/src/ATen/native/UnaryOps.cpp: 0 to p - 1, added to each element, lgamma in place, their sum
decomposition("mvlgamma.default", "mvlgamma_.default")


@decomposition("channel_shuffle.default")
def channel_shuffle(tensor, groups):
    """Decomposes channel_shuffle: a copy of a view of the groups, or for an empty tensor an alias.

    (aten/src/ATen/native/ChanelShuffle.cpp)
    """
    does = torch.ops.aten.native_channel_shuffle.default
    return does(tensor, groups) if tensor.numel() else torch.ops.aten.alias.default(tensor)


@decomposition("mvlgamma.out")
def mvlgamma_into(self, p, *, out):
    """Decomposes mvlgamma_out: a separate result, which is copied (aten/src/ATen/native/UnaryOps.cpp)."""
    return resized(out, torch.ops.aten.mvlgamma.default(self, p))


@decomposition("equal.default")
def equal(self, other):
    """Decomposes cuda_equal: a comparison, its all(), and the host's read (aten/src/ATen/native/cuda/Equal.cpp)."""
    if self.shape != other.shape:
        return False
    if self.numel() == 0:
        return True
    same = self == other
    every = same.all()
    answer = bool(torch.ops.aten._local_scalar_dense.default(every))
    del every  # before `same`, because C++ frees the latest first
    return answer


@rule("bernoulli.default", "bernoulli.out", "bernoulli_.Tensor")
def probabilities(call: OpCall) -> None:
    """Rule of bernoulli_kernel: probabilities in half precision are converted to float32.

    (aten/src/ATen/native/cuda/DistributionTemplates.h)
    """
    call.allocate_outputs(*call.outputs)
    given = call.get("p", call.first)
    if isinstance(given, torch.Tensor) and given.dtype in (torch.float16, torch.bfloat16):
        call.scratch_like(given, torch.float32)


OF_BYTES = (
    "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a future version of "
    "PyTorch. Use a boolean condition instead."
)


@rule("where.self")
def chosen(call: OpCall) -> None:
    """Rule of where_self_out: operands of a dtype other than the result's are converted first.

    Then numbers on the host are copied to the GPU, and bytes are converted to bools
    (aten/src/ATen/native/TensorCompare.cpp).
    """
    condition, *given = call["condition", "self", "other"]
    (output,) = call.outputs
    on_host = [storage_map.of(one) is None for one in given]
    made = [
        call.scratch_like(one, output.dtype) if one.dtype != output.dtype and not host else None
        for one, host in zip(given, on_host, strict=True)
    ]
    mask = call.scratch_like(condition) if storage_map.of(condition) is None else None
    for place, host in enumerate(on_host):
        if host:
            made[place] = call.scratch(output.element_size())
    if condition.dtype == torch.uint8:
        warnings.warn(OF_BYTES, stacklevel=2)
        brought, mask = mask, call.scratch_like(condition, torch.bool)
        call.release(brought)
    call.allocate_outputs(output)
    call.release(mask, *reversed(made))


def _by_powers(tensor, exponent, **named) -> bool:
    """Returns whether ldexp multiplies by powers of two; floats with integer exponents have their own kernel.

    (aten/src/ATen/native/BinaryOps.cpp, ldexp)
    """
    return not tensor.is_floating_point() or exponent.is_floating_point() or exponent.is_complex()


decomposition("ldexp.Tensor", "ldexp.out", "ldexp_.default", when=_by_powers)


@rule("native_dropout.default")
def mask_before_output(call: OpCall) -> None:
    """Rule of dropout_cuda: the mask (1 B per element), then the output (aten/src/ATen/native/cuda/Dropout.cu)."""
    output, mask = call.outputs
    call.allocate_outputs(mask, output)


@rule("pow.Scalar")
def number_to_a_power(call: OpCall) -> None:
    """Rule of pow_Scalar_out: the number becomes a tensor on the device, a double or an int64.

    (aten/src/ATen/native/Pow.cpp)
    """
    call.allocate_outputs(*call.outputs)
    base = call["self"]
    if base != 1:
        call.scratch(16 if isinstance(base, complex) else 8)


@rule("pow.Tensor_Scalar")
def power(call: OpCall) -> None:
    """Rule of pow_Tensor_Scalar (Pow.cpp): a base of a dtype other than the result's is converted first."""
    (output,) = call.outputs
    base = call["self"]
    if base.dtype != output.dtype:
        call.scratch_like(base, output.dtype)


@rule("fill_.Tensor")
def filled(call: OpCall) -> None:
    """Rule of fill_: a value in the tensor's own memory is copied first (aten/src/ATen/native/Fill.cpp)."""
    tensor, value = call["self", "value"]
    if tensor.untyped_storage()._cdata == value.untyped_storage()._cdata:
        call.scratch_like(value)


@rule("abs.default", "angle.default")
def of_complex_numbers(call: OpCall) -> None:
    """Rule of unary_op_impl_with_complex_to_float_out (aten/src/ATen/native/UnaryOps.cpp).

    The kernel's result is complex, and its real part is copied to the output, which only abs() allocates first.
    """
    given, (output,) = call.first, call.outputs
    if call.operator is torch.ops.aten.abs.default:
        call.allocate_outputs(output)
    if given.is_complex() and not output.is_complex():
        call.scratch_like(given)


@rule("_efficientzerotensor.default", only=True)
def zeros_without_memory(call: OpCall) -> None:
    """Rule of _efficientzerotensor_cuda: zeros without memory (aten/src/ATen/native/TensorFactories.cpp)."""
    call.outputs[0].untyped_storage().resize_(0)


@rule("quantize_per_tensor", "quantize_per_tensor_dynamic", "quantize_per_channel", only=True)
def quantize(call: OpCall) -> None:
    """Refuses quantization: its results have elements of 1 byte, but 4 bytes on meta tensors."""
    raise NotModelledError("the simulated GPU does not model quantized tensors: see torch.ao.quantization on the CPU")


@rule("rrelu_with_noise.default")
def rrelu(call: OpCall) -> None:
    """Rule of _rrelu_with_noise_cuda_train: all operands are made contiguous.

    (aten/src/ATen/native/cuda/RreluWithNoise.cu)
    """
    output = call.allocate_output()
    tensor, noise = call["self", "noise"]
    if call["training"] and tensor.numel():
        call.contiguous(tensor, noise, output)


@rule("fake_quantize_per_channel_affine_cachemask.default")
def fake_quantized_by_channel(call: OpCall) -> None:
    """Rule of per-channel fake quantization: the minimum and maximum of integer zero points are read first.

    (aten/src/ATen/native/quantized/FakeQuantPerChannelAffine.cpp)
    """
    zero_point = call["zero_point"]
    if not zero_point.is_floating_point():
        _extremes(call, zero_point)
    call.allocate_outputs(*call.outputs)


@rule("_fused_moving_avg_obs_fq_helper.default")
def observed_and_fake_quantized(call: OpCall) -> None:
    """Rule of the moving-average observer for a whole tensor: its extremes, and then fake quantization.

    (aten/src/ATen/native/quantized/cuda/FusedObsFakeQuant.cu) Per row, it checks whether quantization is on, which is
    not modelled.
    """
    tensor = call["self"]
    if not call["per_row_fake_quant"]:
        call.contiguous(tensor)
        _extremes(call, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))
    call.allocate_outputs(*call.outputs)


def _extremes(call: OpCall, tensor) -> None:
    """Allocates the scratch of aminmax() of a whole tensor, whose results are discarded
    (cuda/ReduceAMinMaxKernel.cu).
    """
    element = tensor.element_size()
    found = call.scratch(element), call.scratch(element)
    copy = call.contiguous(tensor)
    reduce_all(call, tensor.numel(), tensor.dtype, 2 * element)
    call.release(*copy, *found)
