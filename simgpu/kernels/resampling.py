"""Pooling, upsampling and padding: their kernels want operands that are contiguous, or channels_last.

One that is not is copied for the call. Where the output itself is not, the kernel writes to a scratch one. The files
are those of aten/src/ATen/native/cuda that have the operators' names (DilatedMaxPool2d.cu, AveragePool2d.cu,
AdaptiveAveragePooling.cu, AdaptiveMaxPooling2d.cu, UpSampleNearest2d.cu, ReflectionPad.cu, ...); which operands, and in
which order, was read from traces of the oracle (tools/oracle/rules_convolutions.py draws such).
"""

import torch
from torch._prims_common import suggest_memory_format

from simgpu.kernels.launch import Launch, rule

CONTIGUOUS, CHANNELS_LAST = torch.contiguous_format, torch.channels_last
VECTOR_CHANNELS = 4  # channels from which upsampling has kernels for channels_last
BILINEAR_CHANNELS = 16  # those from which the bilinear one has it forward, where it is faster


def copy_unless(launch: Launch, layout: torch.memory_format, *tensors) -> None:
    """Scratch for a copy of each tensor that does not lie so."""
    for tensor in tensors:
        if not tensor.is_contiguous(memory_format=layout):
            launch.scratch_like(tensor)


# Pooling


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default", "avg_pool2d.default")
def pool(launch: Launch) -> None:
    """The outputs, then a copy of an input that is neither contiguous nor channels_last."""
    launch.give(*launch.outputs)
    tensor = launch["self"]
    copy_unless(launch, suggest_memory_format(tensor), tensor)


@rule("max_pool2d_with_indices_backward.default")
def max_pool_2d_backward(launch: Launch) -> None:
    """The gradient, then copies of the input, of the incoming gradient and of the indices."""
    launch.give(*launch.outputs)
    grad, tensor, indices = launch["grad_output", "self", "indices"]
    copy_unless(launch, suggest_memory_format(tensor), tensor, grad, indices)


@rule("avg_pool2d_backward.default")
def avg_pool_2d_backward(launch: Launch) -> None:
    """The gradient, then copies of the input and of the incoming gradient."""
    launch.give(*launch.outputs)
    grad, tensor = launch["grad_output", "self"]
    copy_unless(launch, suggest_memory_format(tensor), tensor, grad)


@rule("max_pool3d_with_indices_backward.default")
def max_pool_3d_backward(launch: Launch) -> None:
    """The gradient, then a copy of the incoming one, laid out as the input."""
    launch.give(*launch.outputs)
    grad, tensor = launch["grad_output", "self"]
    copy_unless(launch, suggest_memory_format(tensor), grad)


@rule("_adaptive_avg_pool2d.default")
def adaptive_avg_pool_2d(launch: Launch) -> None:
    """A copy of the input before the output, unless it is channels_last, for which there is a kernel."""
    if suggest_memory_format(launch["self"]) == CONTIGUOUS:
        copy_unless(launch, CONTIGUOUS, launch["self"])
    launch.give(*launch.outputs)


@rule("_adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool_2d_backward(launch: Launch) -> None:
    """The gradient, then a copy of the incoming one, unless the input is channels_last."""
    launch.give(*launch.outputs)
    grad, tensor = launch["grad_output", "self"]
    if suggest_memory_format(tensor) == CONTIGUOUS:
        copy_unless(launch, CONTIGUOUS, grad)


@rule("_adaptive_avg_pool3d.default")
def adaptive_avg_pool_3d(launch: Launch) -> None:
    """A copy of the input before the output."""
    copy_unless(launch, CONTIGUOUS, launch["self"])
    launch.give(*launch.outputs)


@rule("adaptive_max_pool2d.default")
def adaptive_max_pool_2d(launch: Launch) -> None:
    """The outputs, then contiguous copies of them and of the input."""
    launch.give(*launch.outputs)
    copy_unless(launch, CONTIGUOUS, *launch.outputs, launch["self"])


@rule("adaptive_max_pool2d_backward.default")
def adaptive_max_pool_2d_backward(launch: Launch) -> None:
    """The gradient, then copies of the incoming one, of the indices and of the gradient itself."""
    (output,) = launch.outputs
    grad, indices = launch["grad_output", "indices"]
    launch.give(output)
    copy_unless(launch, CONTIGUOUS, grad, indices, output)


# Upsampling


@rule("upsample_nearest2d.default", "_upsample_nearest_exact2d.default")
def nearest_2d(launch: Launch) -> None:
    """The output, then copies for the kernel that is taken: the one for channels_last, or the contiguous one. Of the
    same height and width it is a copy (UpSampleNearest2d.cu)."""
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
    """The output, then a copy for the kernel for channels_last; the other takes any strides. Of the same height and
    width it is a copy (UpSampleBilinear2d.cu, upsample_bilinear2d_out_cuda_template)."""
    (output,) = launch.outputs
    tensor = launch["self"]
    launch.give(output)
    if tensor.shape != output.shape and _in_channels_last(tensor, output, BILINEAR_CHANNELS):
        copy_unless(launch, CHANNELS_LAST, tensor)


@rule("upsample_nearest2d_backward.default", "_upsample_nearest_exact2d_backward.default")
@rule("upsample_bilinear2d_backward.default")
def upsample_2d_backward(launch: Launch) -> None:
    """The gradient, then copies for the kernel that is taken: the one for channels_last, or the contiguous one. Of the
    same height and width it is a copy (UpSampleNearest2d.cu, UpSampleBilinear2d.cu)."""
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
    """Whether the kernel for channels_last is taken, which there is from so many `channels` on."""
    return (
        suggest_memory_format(tensor) == CHANNELS_LAST
        and tensor.shape[1] >= channels
        and output.is_contiguous(memory_format=CHANNELS_LAST)
    )


@rule("_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default")
@rule("upsample_nearest3d.default", "_upsample_nearest_exact3d.default")
def contiguous_both(launch: Launch) -> None:
    """The output, then contiguous copies of the output and of the input."""
    launch.give(*launch.outputs)
    copy_unless(launch, CONTIGUOUS, *launch.outputs, launch["self"])


@rule("upsample_trilinear3d_backward.default")
def trilinear_backward(launch: Launch) -> None:
    """The gradient, then contiguous copies of the incoming one and of the gradient itself."""
    launch.give(*launch.outputs)
    copy_unless(launch, CONTIGUOUS, launch["grad_output"], *launch.outputs)


# Those that want their first operand contiguous, and nothing else


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
    """The outputs, then a contiguous copy of the first operand."""
    launch.give(*launch.outputs)
    copy_unless(launch, CONTIGUOUS, launch.first)


@rule("fractional_max_pool2d_backward.default")
def fractional_max_pool_2d_backward(launch: Launch) -> None:
    """A copy of the gradient, and then the output."""
    launch.contiguous(launch["grad_output"])
    launch.give(*launch.outputs)


@rule("max_unpool2d.default", "max_unpool3d.default")
def max_unpool(launch: Launch) -> None:
    """MaxUnpooling.cu: copies of what is read, and then the output."""
    launch.contiguous(*launch["self", "indices"])
    launch.give(*launch.outputs)


@rule("im2col.default", "col2im.default", only=True)
def columns(launch: Launch) -> None:
    """Im2Col.cu, Col2Im.cu: the output is made like the input, and then resized; it keeps its storage if that is large
    enough."""
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
