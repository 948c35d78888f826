"""Rules for pooling, upsampling and padding, whose kernels need contiguous or channels_last operands.

Any other operand is copied for the call. If the output itself has a different layout, the kernel writes to a scratch
one. The files are those of aten/src/ATen/native/cuda with the operators' names (DilatedMaxPool2d.cu, AveragePool2d.cu,
AdaptiveAveragePooling.cu, AdaptiveMaxPooling2d.cu, UpSampleNearest2d.cu, ReflectionPad.cu, ...). Which operands are
copied, and in which order, was read from oracle traces (tools/oracle/rules_convolutions.py generates such calls).
"""

import torch
from torch._prims_common import suggest_memory_format

from simgpu.kernels.launch import Launch, rule

CONTIGUOUS, CHANNELS_LAST = torch.contiguous_format, torch.channels_last
VECTOR_CHANNELS = 4  # the least channels for which upsampling has kernels for channels_last
BILINEAR_CHANNELS = 16  # the least for the bilinear one's forward, where it is faster


def copy_unless(launch: Launch, layout: torch.memory_format, *tensors) -> None:
    """Allocates scratch for a copy of each tensor that does not have the layout."""
    for tensor in tensors:
        if not tensor.is_contiguous(memory_format=layout):
            launch.scratch_like(tensor)


# Pooling


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default", "avg_pool2d.default")
def pool(launch: Launch) -> None:
    """Allocates the outputs, then a copy of an input that is neither contiguous nor channels_last."""
    launch.give(*launch.outputs)
    tensor = launch["self"]
    copy_unless(launch, suggest_memory_format(tensor), tensor)


@rule("max_pool2d_with_indices_backward.default")
def max_pool_2d_backward(launch: Launch) -> None:
    """Allocates the gradient, then copies of the input, of the incoming gradient and of the indices."""
    launch.give(*launch.outputs)
    grad, tensor, indices = launch["grad_output", "self", "indices"]
    copy_unless(launch, suggest_memory_format(tensor), tensor, grad, indices)


@rule("avg_pool2d_backward.default")
def avg_pool_2d_backward(launch: Launch) -> None:
    """Allocates the gradient, then copies of the input and of the incoming gradient."""
    launch.give(*launch.outputs)
    grad, tensor = launch["grad_output", "self"]
    copy_unless(launch, suggest_memory_format(tensor), tensor, grad)


@rule("max_pool3d_with_indices_backward.default")
def max_pool_3d_backward(launch: Launch) -> None:
    """Allocates the gradient, then a copy of the incoming one in the input's layout."""
    launch.give(*launch.outputs)
    grad, tensor = launch["grad_output", "self"]
    copy_unless(launch, suggest_memory_format(tensor), grad)


@rule("_adaptive_avg_pool2d.default")
def adaptive_avg_pool_2d(launch: Launch) -> None:
    """Allocates a copy of the input before the output, unless it is channels_last, for which there is a kernel."""
    if suggest_memory_format(launch["self"]) == CONTIGUOUS:
        copy_unless(launch, CONTIGUOUS, launch["self"])
    launch.give(*launch.outputs)


@rule("_adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool_2d_backward(launch: Launch) -> None:
    """Allocates the gradient, then a copy of the incoming one, unless the input is channels_last."""
    launch.give(*launch.outputs)
    grad, tensor = launch["grad_output", "self"]
    if suggest_memory_format(tensor) == CONTIGUOUS:
        copy_unless(launch, CONTIGUOUS, grad)


@rule("_adaptive_avg_pool3d.default")
def adaptive_avg_pool_3d(launch: Launch) -> None:
    """Allocates a copy of the input before the output."""
    copy_unless(launch, CONTIGUOUS, launch["self"])
    launch.give(*launch.outputs)


@rule("adaptive_max_pool2d.default")
def adaptive_max_pool_2d(launch: Launch) -> None:
    """Allocates the outputs, then contiguous copies of them and of the input."""
    launch.give(*launch.outputs)
    copy_unless(launch, CONTIGUOUS, *launch.outputs, launch["self"])


@rule("adaptive_max_pool2d_backward.default")
def adaptive_max_pool_2d_backward(launch: Launch) -> None:
    """Allocates the gradient, then copies of the incoming one, of the indices and of the gradient itself."""
    (output,) = launch.outputs
    grad, indices = launch["grad_output", "indices"]
    launch.give(output)
    copy_unless(launch, CONTIGUOUS, grad, indices, output)


# Upsampling


@rule("upsample_nearest2d.default", "_upsample_nearest_exact2d.default")
def nearest_2d(launch: Launch) -> None:
    """Allocates the output, then copies for the kernel: the one for channels_last, or the contiguous one.

    With unchanged height and width it is a copy (UpSampleNearest2d.cu).
    """
    (output,) = launch.outputs
    tensor = launch["self"]
    launch.give(output)
    if tensor.shape == output.shape:
        return
    if _in_channels_last(tensor, output):
        copy_unless(launch, CHANNELS_LAST, tensor)
    else:
        copy_unless(launch, CONTIGUOUS, output, tensor)


@rule("upsample_bilinear2d.default")
def bilinear_2d(launch: Launch) -> None:
    """Allocates the output, then a copy for the kernel for channels_last; the other one accepts any strides.

    With unchanged height and width it is a copy (UpSampleBilinear2d.cu, upsample_bilinear2d_out_cuda_template).
    """
    (output,) = launch.outputs
    tensor = launch["self"]
    launch.give(output)
    if tensor.shape != output.shape and _in_channels_last(tensor, output, BILINEAR_CHANNELS):
        copy_unless(launch, CHANNELS_LAST, tensor)


@rule("upsample_nearest2d_backward.default", "_upsample_nearest_exact2d_backward.default")
@rule("upsample_bilinear2d_backward.default")
def upsample_2d_backward(launch: Launch) -> None:
    """Allocates the gradient, then copies for the kernel: the one for channels_last, or the contiguous one.

    With unchanged height and width it is a copy (UpSampleNearest2d.cu, UpSampleBilinear2d.cu).
    """
    (output,) = launch.outputs
    grad = launch["grad_output"]
    launch.give(output)
    if grad.shape == output.shape:
        return
    if _in_channels_last(grad, output):
        copy_unless(launch, CHANNELS_LAST, grad)
    else:
        copy_unless(launch, CONTIGUOUS, output, grad)


def _in_channels_last(tensor, output, channels: int = VECTOR_CHANNELS) -> bool:
    """Returns whether the kernel for channels_last runs, which exists from `channels` channels on."""
    return (
        suggest_memory_format(tensor) == CHANNELS_LAST
        and tensor.shape[1] >= channels
        and output.is_contiguous(memory_format=CHANNELS_LAST)
    )


@rule("_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default")
@rule("upsample_nearest3d.default", "_upsample_nearest_exact3d.default")
def contiguous_both(launch: Launch) -> None:
    """Allocates the output, then contiguous copies of the output and of the input."""
    launch.give(*launch.outputs)
    copy_unless(launch, CONTIGUOUS, *launch.outputs, launch["self"])


@rule("upsample_trilinear3d_backward.default")
def trilinear_backward(launch: Launch) -> None:
    """Allocates the gradient, then contiguous copies of the incoming one and of the gradient itself."""
    launch.give(*launch.outputs)
    copy_unless(launch, CONTIGUOUS, launch["grad_output"], *launch.outputs)


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
def contiguous_operand(launch: Launch) -> None:
    """Allocates the outputs, then a contiguous copy of the first operand."""
    launch.give(*launch.outputs)
    copy_unless(launch, CONTIGUOUS, launch.first)


@rule("fractional_max_pool2d_backward.default")
def fractional_max_pool_2d_backward(launch: Launch) -> None:
    """Allocates a copy of the gradient, and then the output."""
    launch.contiguous(launch["grad_output"])
    launch.give(*launch.outputs)


@rule("max_unpool2d.default", "max_unpool3d.default")
def max_unpool(launch: Launch) -> None:
    """Allocates copies of the inputs, and then the output (MaxUnpooling.cu)."""
    launch.contiguous(*launch["self", "indices"])
    launch.give(*launch.outputs)


@rule("im2col.default", "col2im.default", only=True)
def columns(launch: Launch) -> None:
    """Allocates the output like the input, and then resizes it; it keeps its storage if that is large enough.

    (Im2Col.cu, Col2Im.cu)
    """
    (output,) = launch.outputs
    tensor = launch["self"]
    if output.nbytes <= tensor.nbytes:
        output.untyped_storage().resize_(tensor.nbytes)
        launch.give(output)
        launch.contiguous(tensor)
        return
    first = launch.scratch_like(tensor)
    launch.contiguous(tensor)
    launch.give(output)
    launch.release(first)
