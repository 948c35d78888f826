"""Convolutions: which implementation CUDA takes (aten/src/ATen/native/Convolution.cpp), and what each allocates.

With cuDNN on, most are cuDNN's. Outputs, gradients and copies are PyTorch's and all here; the workspace that cuDNN's
engine asks for during the call is not: its size is chosen by cuDNN, on the GPU, and only a GPU can tell it. Off
(`torch.backends.cudnn.enabled = False`), PyTorch's own kernels run, and everything is here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch._prims_common import suggest_memory_format

from labkit.simulator import machine as machines
from labkit.simulator.kernels.launch import made_of_others

HALVES = (torch.float16, torch.bfloat16)


class Backend(NamedTuple):
    """An implementation: forward(input, weight, bias, geometry) -> output, and
    backward(grad_output, input, weight, geometry, wanted) -> gradients of input, weight and bias, each or None.
    """

    forward: Callable
    backward: Callable


@dataclass
class Geometry:
    """The numbers of a convolution, one for each spatial dim."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    def __post_init__(self):
        dims = max(map(len, (self.stride, self.padding, self.dilation, self.output_padding)))
        for name in ("stride", "padding", "dilation", "output_padding"):
            values = list(getattr(self, name))
            setattr(self, name, values * dims if len(values) == 1 else values)

    def as_2d(self) -> "Geometry":
        """A 1-D convolution as a 2-D one of height 1."""
        return Geometry(
            [1, *self.stride],
            [0, *self.padding],
            [1, *self.dilation],
            self.transposed,
            [0, *self.output_padding],
            self.groups,
        )

    def output_shape(self, input, weight) -> list[int]:
        """Sizes of the output of an input and a weight with batch and channels."""
        numbers = zip(
            input.shape[2:],
            weight.shape[2:],
            self.stride,
            self.padding,
            self.dilation,
            self.output_padding,
            strict=True,
        )
        if self.transposed:
            spatial = [(n - 1) * s - 2 * p + d * (k - 1) + 1 + o for n, k, s, p, d, o in numbers]
            return [input.shape[0], weight.shape[1] * self.groups, *spatial]
        spatial = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in numbers]
        return [input.shape[0], weight.shape[0], *spatial]

    @property
    def dilated(self) -> bool:
        return any(d != 1 for d in self.dilation)

    def is_pointwise(self, weight) -> bool:
        """Whether the input is its own matrix of columns."""
        ones = (*weight.shape[2:], *self.stride, *self.dilation)
        return all(n == 1 for n in ones) and not any(self.padding)


@made_of_others("convolution.default")
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """Convolution.cpp, _convolution"""
    check_types(input, weight, bias)
    geometry = Geometry(stride, padding, dilation, transposed, output_padding, groups)
    if weight.dim() > 3:
        return backend_of(input, weight, geometry).forward(input, weight, bias, geometry)
    geometry = geometry.as_2d()
    input, weight = input.contiguous().unsqueeze(2), weight.unsqueeze(2)
    return backend_of(input, weight, geometry).forward(input, weight, bias, geometry).squeeze(2)


@made_of_others("convolution_backward.default")
def convolution_backward(
    grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    """Convolution.cpp, convolution_backward"""
    geometry = Geometry(stride, padding, dilation, transposed, output_padding, groups)
    in_1d = weight.dim() == 3
    if in_1d:
        geometry = geometry.as_2d()
        grad_output, input, weight = grad_output.unsqueeze(2), input.contiguous().unsqueeze(2), weight.unsqueeze(2)
    backend = backend_of(input, weight, geometry)
    gradients = list(backend.backward(grad_output, input, weight, geometry, output_mask))
    if in_1d:
        gradients[:2] = [None if gradient is None else gradient.squeeze(2) for gradient in gradients[:2]]
    if output_mask[2] and gradients[2] is None:
        gradients[2] = sum_over_positions(grad_output)
    return tuple(gradients)


def check_types(input, weight, bias) -> None:
    """Convolution.cpp, check_input_same_type_as_parameters"""
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != input.dtype:
            first, second = (t.type().replace("torch.meta", "torch.cuda") for t in (input, tensor))
            raise RuntimeError(f"Input type ({first}) and {name} type ({second}) should be the same")


# Which implementation


def backend_of(input, weight, geometry: Geometry) -> Backend:
    """Convolution.cpp, _select_conv_backend, for an input and a weight on a GPU."""
    if 0 in input.shape[:2]:
        return EMPTY
    if is_depthwise(input, weight, geometry):
        if cudnn_takes_depthwise(input, weight, geometry):
            return CUDNN
        return DEPTHWISE_2D if input.dim() == 4 else DEPTHWISE_3D
    if cudnn_takes(geometry):
        return CUDNN
    if geometry.transposed:
        return TRANSPOSED
    return DILATED if geometry.dilated or input.dim() == 5 else PLAIN


def is_depthwise(input, weight, geometry: Geometry) -> bool:
    """ConvParams::is_depthwise: one group a channel."""
    channels = input.shape[1]
    return not geometry.transposed and channels == geometry.groups > 1 and weight.shape[0] % channels == 0


def cudnn_takes(geometry: Geometry) -> bool:
    """ConvParams::use_cudnn"""
    too_wide = any(o >= s for o, s in zip(geometry.output_padding, geometry.stride, strict=True))
    return torch._C._get_cudnn_enabled() and not too_wide


def cudnn_takes_depthwise(input, weight, geometry: Geometry) -> bool:
    """ConvParams::use_cudnn_depthwise: channels_last, and fp16 of sizes for which it is known to be faster."""
    if not torch._C._get_cudnn_enabled():
        return False
    if cudnn_layout(input, weight) != torch.contiguous_format:
        return True
    stride = geometry.stride
    return (
        cudnn_takes(geometry)
        and input.dtype == weight.dtype == torch.float16
        and input.dim() == 4
        and not geometry.dilated
        and (stride[0] == stride[1] or input.shape[2] == 1)
        and input.shape[1] >= 32
        and _cudnn_is_faster(input, weight, stride[1])
    )


def _cudnn_is_faster(input, weight, stride: int) -> bool:
    """Convolution.cpp, check_cudnn_depthwise_workload_with_filter"""
    batch, channels, height, width = input.shape
    if height == 1 and stride == 1:
        return True
    size = weight.shape[3]
    if weight.shape[2] != size or size not in (1, 3, 5) or width < 7 or stride not in (1, 2):
        return False
    if stride == 1:
        return True
    if batch == 1:
        return size != 1 or width <= 28
    if size == 1:
        return batch <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)


def cudnn_layout(input, weight) -> torch.memory_format:
    """ConvUtils.h, cudnn_conv_suggest_memory_format: channels_last if either operand is, but for fp64."""
    if torch.float64 in (input.dtype, weight.dtype):
        return torch.contiguous_format
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}[weight.dim()]
    return layout if layout in map(suggest_memory_format, (input, weight)) else torch.contiguous_format


# What they all use


def new(shape, like, layout=torch.contiguous_format):
    """An uninitialised tensor."""
    return torch.empty(shape, dtype=like.dtype, device="meta", memory_format=layout)


def columns_of(planes: int, weight, positions, like):
    """The matrix into which im2col unfolds one sample: a row for each plane and element of the kernel."""
    return new([planes * prod(weight.shape[2:]), prod(positions)], like)


def sum_over_positions(grad_output):
    """The gradient of the bias."""
    return grad_output.sum([dim for dim in range(grad_output.dim()) if dim != 1])


def take_workspace() -> None:
    """What a product by cuBLAS takes."""
    machines.current().take_blas_workspace(torch._C._current_graph_task_id() != -1)


def part(tensor, dim: int, groups: int, group: int):
    """Convolution.cpp, subtensor: a group's part, contiguous."""
    if tensor is None:
        return None
    size = tensor.shape[dim] // groups
    return tensor.narrow(dim, group * size, size).contiguous(memory_format=suggest_memory_format(tensor))


def free_in_order(tensors: list) -> None:
    """Lets go of the tensors of a list, the first one first, as C++ does and Python does not."""
    tensors.reverse()
    tensors.clear()


def by_groups(forward, backward) -> Backend:
    """A backend of kernels that know no groups: each group on its own, and the results concatenated."""

    def all_forward(input, weight, bias, geometry):
        input, weight = input.contiguous(), weight.contiguous()
        groups = geometry.groups
        if groups == 1:
            output = forward(input, weight, bias, geometry)
        else:
            outputs = []
            for group in range(groups):
                parts = [part(input, 1, groups, group), part(weight, 0, groups, group), part(bias, 0, groups, group)]
                outputs.append(forward(*parts, geometry))
                del parts
            output = torch.cat(outputs, 1)
            free_in_order(outputs)
        del weight
        return output

    def all_backward(grad_output, input, weight, geometry, wanted):
        input, weight = input.contiguous(), weight.contiguous()
        groups = geometry.groups
        if groups == 1:
            gradients = backward(grad_output, input, weight, geometry, wanted)
        else:
            found = [], [], []
            for group in range(groups):
                parts = [part(t, dim, groups, group) for t, dim in ((grad_output, 1), (input, 1), (weight, 0))]
                for gradients, gradient in zip(found, backward(*parts, geometry, wanted), strict=True):
                    gradients.append(gradient)
                del gradient, parts
            gradients = [
                torch.cat(of_groups, dim) if want else None
                for of_groups, dim, want in zip(found, (1, 0, 0), wanted, strict=True)
            ]
            for of_groups in reversed(found):
                free_in_order(of_groups)
        del weight
        return gradients

    return Backend(all_forward, all_backward)


# cuDNN: aten/src/ATen/native/cudnn/ConvShared.cpp. Engine workspaces are not known.


def cudnn_forward(input, weight, bias, geometry):
    layout = cudnn_layout(input, weight)
    input = input.contiguous(memory_format=layout)
    if geometry.transposed:
        output = cudnn_gradient_of_input(geometry.output_shape(input, weight), input, weight)
    else:
        output = cudnn_output(input, weight, geometry)
    if bias is not None:
        output.add_(bias.view(-1, *[1] * (input.dim() - 2)))
    return output


def cudnn_output(input, weight, geometry):
    layout = cudnn_layout(input, weight)
    forward = Geometry(
        geometry.stride, geometry.padding, geometry.dilation, False, geometry.output_padding, geometry.groups
    )
    output = new(forward.output_shape(input, weight), input, layout)
    weight = weight.contiguous(memory_format=layout)
    input = input.contiguous(memory_format=layout)
    return output


def cudnn_gradient_of_input(shape, grad_output, weight):
    layout = cudnn_layout(grad_output, weight)
    gradient = new(shape, grad_output, layout)
    weight = weight.contiguous(memory_format=layout)
    grad_output = grad_output.contiguous(memory_format=layout)
    return gradient


def cudnn_gradient_of_weight(shape, grad_output, input):
    layout = cudnn_layout(input, grad_output)
    grad_output = grad_output.contiguous(memory_format=layout)
    input = input.contiguous(memory_format=layout)
    gradient = new(shape, grad_output, layout)
    del input
    return gradient


def cudnn_backward(grad_output, input, weight, geometry, wanted):
    if wanted[1]:
        input = input.contiguous(memory_format=cudnn_layout(input, weight))
    layout = suggest_memory_format(input)
    grad_input = grad_weight = None
    if geometry.transposed:
        grad = grad_output.contiguous(memory_format=layout)
        if wanted[0]:
            grad_input = cudnn_output(grad, weight, geometry)
        if wanted[1]:
            grad_weight = cudnn_gradient_of_weight(weight.shape, input, grad)
    else:
        grad = grad_output if suggest_memory_format(grad_output) == layout else grad_output.to(memory_format=layout)
        if wanted[0]:
            grad_input = cudnn_gradient_of_input(input.shape, grad, weight)
        if wanted[1]:
            grad_weight = cudnn_gradient_of_weight(weight.shape, grad, input)
    del grad
    return grad_input, grad_weight, None


CUDNN = Backend(cudnn_forward, cudnn_backward)


# aten/src/ATen/native/cuda/ConvolutionMM2d.cu


def plain_forward(input, weight, bias, geometry):
    output = new(geometry.output_shape(input, weight), input)
    columns = None
    if not geometry.is_pointwise(weight):
        columns = columns_of(weight.shape[1], weight, output.shape[2:], input)
    take_workspace()
    del columns
    return output


def plain_backward(grad_output, input, weight, geometry, wanted):
    grad = grad_output.contiguous()
    grad_input = grad_weight = grad_bias = columns = None
    if wanted[0]:
        grad_input = new(input.shape, input)
        columns = columns_of(weight.shape[1], weight, grad.shape[2:], input)
        take_workspace()
    if wanted[2]:
        grad_bias = sum_over_positions(grad)
    if wanted[1]:
        grad_weight = new(weight.shape, weight)
        if columns is None:
            columns = columns_of(weight.shape[1], weight, grad.shape[2:], input)
        take_workspace()
    del columns
    del grad
    return grad_input, grad_weight, grad_bias


PLAIN = by_groups(plain_forward, plain_backward)


# aten/src/ATen/native/cuda/NaiveDilatedConvolution.cu


def dilated_forward(input, weight, bias, geometry):
    output = new(geometry.output_shape(input, weight), input)
    columns = columns_of(weight.shape[1], weight, output.shape[2:], input)
    take_workspace()
    del columns
    return output


def dilated_backward(grad_output, input, weight, geometry, wanted):
    grad = grad_output.contiguous()
    grad_input = new(input.shape, grad) if wanted[0] else None
    grad_weight = new(weight.shape, grad) if wanted[1] else None
    grad_bias = new(weight.shape[:1], grad) if wanted[2] else None
    columns = None
    if wanted[0] or wanted[1]:
        columns = columns_of(weight.shape[1], weight, grad.shape[2:], grad)
    for sample in grad:
        if wanted[0] or wanted[1]:
            take_workspace()
        if wanted[2]:
            grad_bias += sample.sum(list(range(1, sample.dim())))
    del columns, sample
    del grad
    return grad_input, grad_weight, grad_bias


DILATED = by_groups(dilated_forward, dilated_backward)


# aten/src/ATen/native/cuda/NaiveConvolutionTranspose2d.cu, NaiveConvolutionTranspose3d.cu


def transposed_forward(input, weight, bias, geometry):
    shape = geometry.output_shape(input, weight)
    shape[1] = weight.shape[1]
    if input.dim() == 4:
        output = new(shape, input)
    else:
        output = torch.empty_like(input, memory_format=torch.contiguous_format).resize_(shape)
    columns = columns_of(weight.shape[1], weight, input.shape[2:], input)
    ones = None if bias is None else new(shape[2:], input)
    take_workspace()
    del ones
    del columns
    return output


def transposed_backward(grad_output, input, weight, geometry, wanted):
    def columns():
        if geometry.is_pointwise(weight):
            return None
        return columns_of(weight.shape[1], weight, input.shape[2:], input)

    grad_input = grad_weight = grad_bias = None
    if wanted[0]:
        grad = grad_output.contiguous()
        grad_input = new(input.shape, grad)
        unfolded = columns()
        take_workspace()
        del unfolded
        del grad
    if wanted[1]:
        grad_weight = new(weight.shape, grad_output)
    if wanted[2]:
        grad_bias = new(weight.shape[1:2], grad_output)
    if wanted[1] or wanted[2]:
        grad = grad_output.contiguous()
        unfolded = columns()
        if wanted[1]:
            take_workspace()
        if wanted[2]:
            torch.sum(grad, [dim for dim in range(grad.dim()) if dim != 1], out=grad_bias)
        del unfolded
        del grad
    return grad_input, grad_weight, grad_bias


TRANSPOSED = by_groups(transposed_forward, transposed_backward)


# aten/src/ATen/native/cuda/DepthwiseConv2d.cu, DepthwiseConv3d.cu


def depthwise_2d_forward(input, weight, bias, geometry):
    input = input.contiguous()
    weight = weight.contiguous()
    return new(geometry.output_shape(input, weight), input)


def depthwise_2d_backward(grad_output, input, weight, geometry, wanted):
    grad = grad_output.contiguous()
    grad_input = grad_weight = None
    if wanted[1]:
        input = input.contiguous()
        grad_weight = new(weight.shape, grad)
        shape = input.shape
        del input
    else:
        shape = input.shape
    if wanted[0]:
        weight = weight.contiguous()
        grad_input = new(shape, grad)
        del weight
    del grad
    return grad_input, grad_weight, None


DEPTHWISE_2D = Backend(depthwise_2d_forward, depthwise_2d_backward)


def depthwise_3d_forward(input, weight, bias, geometry):
    input = input.contiguous()
    output = new(geometry.output_shape(input, weight), input)
    weight = weight.contiguous()
    return output


def depthwise_3d_backward(grad_output, input, weight, geometry, wanted):
    grad_input = new(input.shape, grad_output) if wanted[0] else None
    grad_weight = new(weight.shape, grad_output) if wanted[1] else None
    grad = grad_output.contiguous()
    if wanted[0]:
        weight = weight.contiguous()
        del weight
    if wanted[1]:
        input = input.contiguous()
        del input
    grad_bias = sum_over_positions(grad_output) if wanted[2] else None
    del grad
    return grad_input, grad_weight, grad_bias


DEPTHWISE_3D = Backend(depthwise_3d_forward, depthwise_3d_backward)


# No samples or no channels


def empty_forward(input, weight, bias, geometry):
    """The weight is flattened, a copy of it where that needs one."""
    layouts = [torch.contiguous_format] + [torch.channels_last] * (weight.dim() == 4)
    if not any(weight.is_contiguous(memory_format=layout) for layout in layouts):
        weight.clone(memory_format=torch.contiguous_format)
    return new(geometry.output_shape(input, weight), input)


def empty_backward(grad_output, input, weight, geometry, wanted):
    bias_size = weight.shape[1] * geometry.groups if geometry.transposed else weight.shape[0]
    return (
        torch.zeros_like(input) if wanted[0] else None,
        torch.zeros_like(weight) if wanted[1] else None,
        new([bias_size], weight) if wanted[2] else None,
    )


EMPTY = Backend(empty_forward, empty_backward)
