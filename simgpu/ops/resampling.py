"""Rules for pooling, upsampling and padding, whose kernels need contiguous or channels_last operands.

Any other operand is copied for the call. If the output itself has a different layout, the kernel writes to a scratch
one. The files are those of aten/src/ATen/native/cuda with the operators' names (DilatedMaxPool2d.cu, AveragePool2d.cu,
AdaptiveAveragePooling.cu, AdaptiveMaxPooling2d.cu, UpSampleNearest2d.cu, ReflectionPad.cu, ...). Which operands are
copied, and in which order, was read from oracle traces (tools/oracle/rules/convolutions.py generates such calls).
"""

import torch
from torch._prims_common import suggest_memory_format

from simgpu.ops.op_call import OpCall, rule

CONTIGUOUS, CHANNELS_LAST = torch.contiguous_format, torch.channels_last
VECTOR_CHANNELS = 4  # the least channels for which upsampling has kernels for channels_last
BILINEAR_CHANNELS = 16  # the least for the bilinear one's forward, where it is faster


def copy_unless(call: OpCall, layout: torch.memory_format, *tensors) -> None:
    """Allocates scratch for a copy of each tensor that does not have the layout."""
    for tensor in tensors:
        if not tensor.is_contiguous(memory_format=layout):
            call.scratch_like(tensor)


# Pooling


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default", "avg_pool2d.default")
def pool(call: OpCall) -> None:
    """Allocates the outputs, then a copy of an input that is neither contiguous nor channels_last."""
    call.allocate_outputs(*call.outputs)
    tensor = call["self"]
    copy_unless(call, suggest_memory_format(tensor), tensor)


@rule("max_pool2d_with_indices_backward.default", "avg_pool2d_backward.default")
def pool_2d_backward(call: OpCall) -> None:
    """Allocates the gradient, then copies of the input, of the incoming gradient and of the indices, if there are."""
    call.allocate_outputs(*call.outputs)
    grad, tensor, indices = *call["grad_output", "self"], call.get("indices")
    copy_unless(call, suggest_memory_format(tensor), tensor, grad, *([] if indices is None else [indices]))


@rule("max_pool3d_with_indices_backward.default")
def max_pool_3d_backward(call: OpCall) -> None:
    """Allocates the gradient, then a copy of the incoming one in the input's layout."""
    call.allocate_outputs(*call.outputs)
    grad, tensor = call["grad_output", "self"]
    copy_unless(call, suggest_memory_format(tensor), grad)


@rule("_adaptive_avg_pool2d.default")
def adaptive_avg_pool_2d(call: OpCall) -> None:
    """Allocates a copy of the input before the output, unless it is channels_last, for which there is a kernel."""
    if suggest_memory_format(call["self"]) == CONTIGUOUS:
        copy_unless(call, CONTIGUOUS, call["self"])
    call.allocate_outputs(*call.outputs)


@rule("_adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool_2d_backward(call: OpCall) -> None:
    """Allocates the gradient, then a copy of the incoming one, unless the input is channels_last."""
    call.allocate_outputs(*call.outputs)
    grad, tensor = call["grad_output", "self"]
    if suggest_memory_format(tensor) == CONTIGUOUS:
        copy_unless(call, CONTIGUOUS, grad)


@rule("adaptive_max_pool2d_backward.default")
def adaptive_max_pool_2d_backward(call: OpCall) -> None:
    """Allocates the gradient, then copies of the incoming one, of the indices and of the gradient itself."""
    (output,) = call.outputs
    grad, indices = call["grad_output", "indices"]
    call.allocate_outputs(output)
    copy_unless(call, CONTIGUOUS, grad, indices, output)


# Upsampling


@rule("upsample_nearest2d.default", "_upsample_nearest_exact2d.default")
@rule("upsample_nearest2d_backward.default", "_upsample_nearest_exact2d_backward.default")
@rule("upsample_bilinear2d_backward.default")
def nearest_2d(call: OpCall) -> None:
    """Allocates the output, then copies for the kernel: the one for channels_last, or the contiguous one.

    With unchanged height and width it is a copy (UpSampleNearest2d.cu, UpSampleBilinear2d.cu).
    """
    (output,) = call.outputs
    tensor = call.first
    call.allocate_outputs(output)
    if tensor.shape == output.shape:
        return
    if _in_channels_last(tensor, output):
        copy_unless(call, CHANNELS_LAST, tensor)
    else:
        copy_unless(call, CONTIGUOUS, output, tensor)


@rule("upsample_bilinear2d.default")
def bilinear_2d(call: OpCall) -> None:
    """Allocates the output, then a copy for the kernel for channels_last; the other one accepts any strides.

    With unchanged height and width it is a copy (UpSampleBilinear2d.cu, upsample_bilinear2d_out_cuda_template).
    """
    (output,) = call.outputs
    tensor = call["self"]
    call.allocate_outputs(output)
    if tensor.shape != output.shape and _in_channels_last(tensor, output, BILINEAR_CHANNELS):
        copy_unless(call, CHANNELS_LAST, tensor)


def _in_channels_last(tensor, output, channels: int = VECTOR_CHANNELS) -> bool:
    """Returns whether the kernel for channels_last runs, which exists from `channels` channels on."""
    return (
        suggest_memory_format(tensor) == CHANNELS_LAST
        and tensor.shape[1] >= channels
        and output.is_contiguous(memory_format=CHANNELS_LAST)
    )


@rule("_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default", "adaptive_max_pool2d.default")
@rule("upsample_nearest3d.default", "_upsample_nearest_exact3d.default")
def contiguous_both(call: OpCall) -> None:
    """Allocates the outputs, then contiguous copies of them and of the input."""
    call.allocate_outputs(*call.outputs)
    copy_unless(call, CONTIGUOUS, *call.outputs, call["self"])


@rule("upsample_trilinear3d_backward.default")
def trilinear_backward(call: OpCall) -> None:
    """Allocates the gradient, then contiguous copies of the incoming one and of the gradient itself."""
    call.allocate_outputs(*call.outputs)
    copy_unless(call, CONTIGUOUS, call["grad_output"], *call.outputs)


# Operators that only need their first operand contiguous


@rule("avg_pool3d.default", "avg_pool3d_backward.default", "_adaptive_avg_pool3d_backward.default")
@rule("adaptive_max_pool3d.default", "adaptive_max_pool3d_backward.default")
@rule("upsample_nearest1d.default", "upsample_nearest1d_backward.default")
@rule("_upsample_nearest_exact1d.default", "_upsample_nearest_exact1d_backward.default")
@rule("upsample_linear1d_backward.default", "upsample_bicubic2d_backward.default")
@rule("_upsample_bilinear2d_aa_backward.default", "_upsample_bicubic2d_aa_backward.default")
@rule("upsample_nearest3d_backward.default", "_upsample_nearest_exact3d_backward.default")
@rule("reflection_pad1d.default", "reflection_pad1d_backward.default")
@rule("reflection_pad2d.default", "reflection_pad2d_backward.default", "reflection_pad3d.default")
def contiguous_operand(call: OpCall) -> None:
    """Allocates the outputs, then a contiguous copy of the first operand."""
    call.allocate_outputs(*call.outputs)
    copy_unless(call, CONTIGUOUS, call.first)


@rule("_adaptive_avg_pool3d.default", "fractional_max_pool2d_backward.default")
def contiguous_operand_first(call: OpCall) -> None:
    """Allocates a contiguous copy of the first operand, then the output."""
    call.contiguous(call.first)
    call.allocate_outputs(*call.outputs)


@rule("max_unpool2d.default", "max_unpool3d.default")
def max_unpool(call: OpCall) -> None:
    """Allocates copies of the inputs, and then the output (MaxUnpooling.cu)."""
    call.contiguous(*call["self", "indices"])
    call.allocate_outputs(*call.outputs)


@rule("im2col.default", "col2im.default", only=True)
def columns(call: OpCall) -> None:
    """Allocates the output like the input, and then resizes it; it keeps its storage if that is large enough.

    (Im2Col.cu, Col2Im.cu)
    """
    (output,) = call.outputs
    tensor = call["self"]
    if output.nbytes <= tensor.nbytes:
        output.untyped_storage().resize_(tensor.nbytes)
        call.allocate_outputs(output)
        call.contiguous(tensor)
        return
    first = call.scratch_like(tensor)
    call.contiguous(tensor)
    call.allocate_outputs(output)
    call.release(first)
