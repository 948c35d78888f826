"""What cuDNN adds to a convolution on Tensor Cores whose images are contiguous: kernels that change the layout.

Its kernels for Tensor Cores want channels last. Contiguous images (N × C × H × W) are transposed before and the
results after, each in a kernel that reads and writes the tensor once (NVIDIA, Convolutional Layers User's Guide,
"Tensor Layouts In Memory: NCHW vs NHWC"). Depthwise convolutions use no Tensor Cores, and with
torch.backends.cudnn.enabled = False PyTorch's own kernels take contiguous images as they are. Where a kernel for
contiguous images is faster cuDNN takes that; this is not known here and not counted.
"""

import torch

from simgpu.tensors import arguments

TENSOR_CORES = ("float16", "bfloat16", "tf32")


def changed(operator, args, kwargs, outputs, precision: str) -> list[torch.Tensor]:
    """The tensors that are transposed around a call of a convolution, forward or backward; none for other operators."""
    if precision not in TENSOR_CORES or not torch.backends.cudnn.enabled:
        return []
    if not (arguments.has(operator, "groups") and arguments.has(operator, "transposed")):
        return []
    images = arguments.given(operator, "input", args, kwargs)
    weight = arguments.given(operator, "weight", args, kwargs)
    groups = arguments.given(operator, "groups", args, kwargs)
    if not _contiguous(images) or groups == images.shape[1] > 1:
        return []
    if operator._schema.name != "aten::convolution_backward":
        return [images, weight, outputs[0]]
    gradient = arguments.given(operator, "grad_output", args, kwargs)
    of_images, of_weight = outputs[:2]
    found = [gradient, weight, of_images] if of_images is not None else []
    return found + ([gradient, images, of_weight] if of_weight is not None else [])


def _contiguous(images: torch.Tensor) -> bool:
    """Whether images lie channel after channel, and not as channels last too (one channel, or one pixel)."""
    if images.ndim != 4:
        return False
    return images.is_contiguous() and not images.is_contiguous(memory_format=torch.channels_last)
