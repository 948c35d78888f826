"""What cuDNN adds to a convolution on Tensor Cores whose images are contiguous: kernels that change the layout.

Its kernels for Tensor Cores want channels last. Contiguous images (N × C × H × W) are transposed before and the
results after, each in a kernel that reads and writes the tensor once (NVIDIA, Convolutional Layers User's Guide,
"Tensor Layouts In Memory: NCHW vs NHWC"). Not transposed is what needs none: a convolution with kernels of one pixel
and stride 1, which is a product of the weight and each image's matrix of channels by pixels as it lies there (the
published rows of timm's contiguous table for the RTX 4090 say so too, and are no test of it); depthwise ones, which
use no Tensor Cores; with torch.backends.cudnn.enabled = False PyTorch's own kernels, which take images as they are;
compiled models, whose convolutions inductor gives channels last (torch/_inductor/graph.py, decide_layout_opt); and
Conv1d and Conv3d, of which no published time was at hand.
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
    backward = operator._schema.name == "aten::convolution_backward"
    gradient = arguments.given(operator, "grad_output", args, kwargs) if backward else outputs[0]
    depthwise = groups == images.shape[1] > 1
    if depthwise or _is_a_product(operator, args, kwargs, weight, groups):
        return []
    if not (_contiguous(images) and _contiguous(gradient)):  # a weight in channels last makes the result so
        return []
    if not backward:
        return [images, weight, gradient]
    of_images, of_weight = outputs[:2]
    found = [gradient, weight, of_images] if of_images is not None else []
    return found + ([gradient, images, of_weight] if of_weight is not None else [])


def _is_a_product(operator, args, kwargs, weight: torch.Tensor, groups: int) -> bool:
    """Whether the kernels have one pixel, and each pixel of the images gives one of the result."""
    given = (arguments.given(operator, name, args, kwargs) for name in ("stride", "padding"))
    stride, padding = map(set, given)
    return groups == 1 and weight.shape[2:].numel() == 1 and stride == {1} and padding == {0}


def _contiguous(images: torch.Tensor) -> bool:
    """Whether images lie channel after channel, and not as channels last too (one channel, or one pixel)."""
    if images.ndim != 4:
        return False
    return images.is_contiguous() and not images.is_contiguous(memory_format=torch.channels_last)
