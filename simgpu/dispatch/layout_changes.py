"""Estimates the layout conversions that cuDNN adds to a convolution of contiguous images on Tensor Cores.

cuDNN's kernels for Tensor Cores need channels last. Contiguous images (N × C × H × W) are transposed before and the
results after, each in a kernel that reads and writes the tensor once (NVIDIA, Convolutional Layers User's Guide,
"Tensor Layouts In Memory: NCHW vs NHWC").

Five cases need no transposition. A convolution with kernels of one pixel and stride 1 is a matmul of the weight and
each image's channels-by-pixels matrix (the published rows of timm's contiguous table for the RTX 4090 agree with that,
and are no test of it). Depthwise convolutions use no Tensor Cores. With torch.backends.cudnn.enabled = False, PyTorch's
own kernels accept images as they are. In compiled models, inductor converts convolutions to channels last
(torch/_inductor/graph.py, decide_layout_opt). For Conv1d and Conv3d no published time was available.
"""

import torch

from simgpu.op_info import arguments

TENSOR_CORES = ("float16", "bfloat16", "tf32")


def changed(operator, args, kwargs, outputs, precision: str) -> list[torch.Tensor]:
    """Returns the tensors that are transposed around a convolution, forward or backward; [] for other operators."""
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
    # a weight in channels last makes the result channels last too
    if not (_contiguous(images) and _contiguous(gradient)):
        return []
    if not backward:
        return [images, weight, gradient]
    of_images, of_weight = outputs[:2]
    found = [gradient, weight, of_images] if of_images is not None else []
    return found + ([gradient, images, of_weight] if of_weight is not None else [])


def _is_a_product(operator, args, kwargs, weight: torch.Tensor, groups: int) -> bool:
    """Returns whether the kernels have one pixel, and each pixel of the images gives one of the result."""
    given = (arguments.given(operator, name, args, kwargs) for name in ("stride", "padding"))
    stride, padding = map(set, given)
    return groups == 1 and weight.shape[2:].numel() == 1 and stride == {1} and padding == {0}


def _contiguous(images: torch.Tensor) -> bool:
    """Returns whether images are contiguous, and not also channels last (as with one channel or one pixel)."""
    if images.ndim != 4:
        return False
    return images.is_contiguous() and not images.is_contiguous(memory_format=torch.channels_last)
