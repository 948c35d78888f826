"""Convolutions: their geometry, the implementation that CUDA chooses, and what each allocates."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch._prims_common import suggest_memory_format

from simgpu import unmodeled
from simgpu.autograd import accumulation
from simgpu.checks.devices import type_of
from simgpu.checks.scalar_types import name, not_implemented
from simgpu.device import machine as machines
from simgpu.ops.op_call import decomposition

# Holds the parameters of a convolution, and finds the layout that its implementations need.

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dims


@dataclass
class Geometry:
    """The parameters of a convolution, one value per spatial dim."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    def __post_init__(self):
        dims = max(map(len, (self.stride, self.padding, self.dilation, self.output_padding)))
        for field in ("stride", "padding", "dilation", "output_padding"):
            values = list(getattr(self, field))
            setattr(self, field, values * dims if len(values) == 1 else values)

    def as_2d(self) -> "Geometry":
        """Returns a 1-D convolution as a 2-D one of height 1."""
        return Geometry(
            [1, *self.stride],
            [0, *self.padding],
            [1, *self.dilation],
            self.transposed,
            [0, *self.output_padding],
            self.groups,
        )

    def output_shape(self, input, weight) -> list[int]:
        """Returns the sizes of the output for an input and a weight with batch and channels."""
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
        """Returns whether the input is its own matrix of columns."""
        ones = (*weight.shape[2:], *self.stride, *self.dilation)
        return all(n == 1 for n in ones) and not any(self.padding)


def cudnn_layout(input, weight) -> torch.memory_format:
    """Returns channels_last if either operand is, except for fp64 (ConvUtils.h, cudnn_conv_suggest_memory_format)."""
    if torch.float64 in (input.dtype, weight.dtype):
        return torch.contiguous_format
    layout = CHANNELS_LAST[weight.dim()]
    return layout if layout in map(suggest_memory_format, (input, weight)) else torch.contiguous_format


# Functions that allocate what CUDA's implementations of convolution allocate, by making the same tensors as the C++
# code.
# Every operator that they call is seen. They free tensors in the order in which C++ destroys locals, latest first.


class Backend(NamedTuple):
    """An implementation of convolution.

    It has forward(input, weight, bias, geometry) -> output, and backward(grad_output, input, weight, geometry, wanted)
    -> gradients of input, weight and bias, each of which may be None.
    """

    forward: Callable
    backward: Callable


# Common helpers


def new(shape, like, layout=torch.contiguous_format):
    """Returns an uninitialised tensor."""
    return torch.empty(shape, dtype=like.dtype, device="meta", memory_format=layout)


def columns_of(planes: int, weight, positions, like):
    """Returns the matrix into which im2col unfolds one sample: a row per plane and kernel element."""
    return new([planes * prod(weight.shape[2:]), prod(positions)], like)


def sum_over_positions(grad_output):
    """Returns the gradient of the bias."""
    return grad_output.sum([dim for dim in range(grad_output.dim()) if dim != 1])


def take_workspaces(input, of_a_sample: int = 1) -> None:
    """Allocates cuBLAS's workspaces for the matmuls, `of_a_sample` per sample of the input, one after the other."""
    for _ in range(len(input) * of_a_sample):
        machines.on().take_blas_workspace(accumulation.in_its_thread())


def part(tensor, dim: int, groups: int, group: int):
    """Returns a group's part, contiguous (Convolution.cpp, subtensor)."""
    if tensor is None:
        return None
    size = tensor.shape[dim] // groups
    return tensor.narrow(dim, group * size, size).contiguous(memory_format=suggest_memory_format(tensor))


def free_in_order(tensors: list) -> None:
    """Frees the tensors of a list from the first to the last, as C++ does and Python does not."""
    tensors.reverse()
    tensors.clear()


def as_a_row(bias):
    """Returns a contiguous bias, because its kernel reads it element by element."""
    return None if bias is None else bias.contiguous()


def by_groups(forward, backward) -> Backend:
    """Returns a backend for kernels without groups: each group runs separately, and the results are concatenated."""

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
    bias = as_a_row(bias)
    output = new(geometry.output_shape(input, weight), input)
    columns = None
    if not geometry.is_pointwise(weight):
        columns = columns_of(weight.shape[1], weight, output.shape[2:], input)
    take_workspaces(input)
    del columns, bias
    return output


def plain_backward(grad_output, input, weight, geometry, wanted):
    grad = grad_output.contiguous()
    grad_input = grad_weight = grad_bias = columns = None
    if wanted[0]:
        grad_input = new(input.shape, input)
        columns = columns_of(weight.shape[1], weight, grad.shape[2:], input)
        take_workspaces(input)
    if wanted[2]:
        grad_bias = sum_over_positions(grad)
    if wanted[1]:
        grad_weight = new(weight.shape, weight)
        if columns is None:
            columns = columns_of(weight.shape[1], weight, grad.shape[2:], input)
        take_workspaces(input)
    del columns
    del grad
    return grad_input, grad_weight, grad_bias


PLAIN = by_groups(plain_forward, plain_backward)


# aten/src/ATen/native/cuda/NaiveDilatedConvolution.cu


def dilated_forward(input, weight, bias, geometry):
    bias = as_a_row(bias)
    output = new(geometry.output_shape(input, weight), input)
    columns = columns_of(weight.shape[1], weight, output.shape[2:], input)
    take_workspaces(input)
    del columns, bias
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
        take_workspaces(sample[None], wanted[0] + wanted[1])
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
        bias = as_a_row(bias)
    else:
        output = torch.empty_like(input, memory_format=torch.contiguous_format)
        bias = as_a_row(bias)
        output.resize_(shape)
    columns = columns_of(weight.shape[1], weight, input.shape[2:], input)
    ones = None if bias is None else new(shape[2:], input)
    take_workspaces(input, 1 if ones is None else 2)
    del ones
    del columns, bias
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
        take_workspaces(input)
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
            take_workspaces(input)
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
    bias = as_a_row(bias)
    output = new(geometry.output_shape(input, weight), input)
    del bias, weight
    return output


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
    bias = as_a_row(bias)
    del bias, weight
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


# Inputs without samples or channels


def empty_forward(input, weight, bias, geometry):
    """Flattens the weight, with a copy if needed, and returns the empty output."""
    layouts = (torch.contiguous_format, CHANNELS_LAST[weight.dim()])
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


# Selects the implementation of a convolution as CUDA does (aten/src/ATen/native/Convolution.cpp; see `_backends`).
# With cuDNN on, most convolutions are cuDNN's. Outputs, gradients and copies are PyTorch's and are modelled
# completely. The workspace that cuDNN's engine requests during the call is not: cuDNN chooses its size, which is
# known only on a GPU. With cuDNN off (`torch.backends.cudnn.enabled = False`), PyTorch's own kernels run, and
# everything is modelled.


@decomposition("convolution.default")
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """Decomposes _convolution (Convolution.cpp)."""
    geometry = Geometry(stride, padding, dilation, transposed, output_padding, groups)
    input, weight = _as_for_a_gradient(input, weight)
    check(input, weight, bias, geometry)
    if weight.dim() > 3:
        return _forward(input, weight, bias, geometry)
    geometry = geometry.as_2d()
    input, weight = input.contiguous().unsqueeze(2), weight.unsqueeze(2)
    return _forward(input, weight, bias, geometry).squeeze(2)


def _forward(input, weight, bias, geometry: Geometry):
    if input.dtype not in FLOATS:
        refuse(_backend_of(input, weight, geometry), input)
    return backend_of(input, weight, geometry).forward(input, weight, bias, geometry)


def _as_for_a_gradient(input, weight):
    """Makes operands contiguous as _convolution_double_backward (Convolution.cpp) does for CUDA tensors.

    It passes the gradient as the weight, or for a transposed convolution as the input.
    """
    if weight.is_contiguous():
        return input, weight
    node = torch._C._current_autograd_node()
    if node is None or node.name() != "ConvolutionBackwardBackward0":
        return input, weight
    if node._saved_transposed:  # pyright: ignore[reportAttributeAccessIssue]
        return input.contiguous(), weight
    return input, weight.contiguous()


@decomposition("convolution_backward.default")
def convolution_backward(
    grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    """Decomposes convolution_backward (Convolution.cpp)."""
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


def check(input, weight, bias, geometry: Geometry) -> None:
    """Raises the errors of check_input_same_type_as_parameters and check_shape_forward (Convolution.cpp)."""
    for which, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != input.dtype:
            raise RuntimeError(f"Input type ({type_of(input)}) and {which} type ({type_of(tensor)}) should be the same")
    shape, groups = list(weight.shape), geometry.groups
    if input.dim() != weight.dim():
        raise RuntimeError(
            f"Expected {weight.dim()}-dimensional input for {weight.dim()}-dimensional weight {shape}, but got "
            f"{input.dim()}-dimensional input of size {list(input.shape)} instead"
        )
    channels = shape[0] if geometry.transposed else shape[1] * groups
    if input.shape[1] != channels:
        given = f"transposed={int(geometry.transposed)}" if geometry.transposed else f"groups={groups}"
        raise RuntimeError(
            f"Given {given}, weight of size {shape}, expected input{list(input.shape)} to have {channels} channels, "
            f"but got {input.shape[1]} channels instead"
        )
    outputs = shape[1] * groups if geometry.transposed else shape[0]
    if bias is not None and list(bias.shape) != [outputs]:
        raise RuntimeError(
            f"Given {'transposed=1, ' if geometry.transposed else ''}weight of size {shape}, expected bias to be "
            f"1-dimensional with {outputs} elements, but got bias of size {list(bias.shape)} instead"
        )
    if geometry.transposed:
        return
    padded = [n + 2 * p for n, p in zip(input.shape[2:], geometry.padding, strict=True)]
    kernel = [d * (k - 1) + 1 for d, k in zip(geometry.dilation, shape[2:], strict=True)]
    if any(n < k for n, k in zip(padded, kernel, strict=True)):
        sizes, kernels = (" x ".join(map(str, numbers)) for numbers in (padded, kernel))
        raise RuntimeError(
            f"Calculated padded input size per channel: ({sizes}). Kernel size: ({kernels}). "
            "Kernel size can't be greater than actual input size"
        )


# Dtypes, and the choice of implementation

FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
OF_CUDNN = {torch.uint8, torch.int8, torch.int32}  # additional dtypes of cuDNN (aten/src/ATen/cudnn/Types.cpp)


def refuse(backend: Backend, input) -> None:
    """Raises CUDA's error for an input dtype without a kernel: cuDNN's descriptors', or AT_DISPATCH's with the kernel's
    name.

    Whether cuDNN has an engine for the dtypes in `OF_CUDNN` is known only on a GPU.
    """
    dtype = input.dtype
    if backend is CUDNN and dtype not in OF_CUDNN:
        raise RuntimeError(f"getCudnnDataTypeFromScalarType() not supported for {name(dtype)}")
    flat = input.dim() == 4
    kernels = {
        PLAIN: "slow_conv2d_cuda",
        DILATED: "slow_conv_dilated<>",
        TRANSPOSED: "slow_conv_transpose2d_out_cuda" if flat else "slow_conv_transpose3d_out_cuda",
        DEPTHWISE_2D: "conv_depthwise2d_forward_cuda",
        DEPTHWISE_3D: "conv_depthwise3d",
    }
    if backend in kernels:
        not_implemented(kernels[backend], dtype)


def backend_of(input, weight, geometry: Geometry) -> Backend:
    """Returns the backend that _select_conv_backend (Convolution.cpp) selects for an input and a weight on a GPU.

    Reports cuDNN's workspace as not modelled.
    """
    backend = _backend_of(input, weight, geometry)
    if backend is CUDNN:
        machines.on().unmodeled.add("cuDNN's convolutions", unmodeled.CUDNN)
    return backend


def _backend_of(input, weight, geometry: Geometry) -> Backend:
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
    """Returns whether there is one group per channel (ConvParams::is_depthwise)."""
    channels = input.shape[1]
    return not geometry.transposed and channels == geometry.groups > 1 and weight.shape[0] % channels == 0


def cudnn_takes(geometry: Geometry) -> bool:
    """Returns whether cuDNN can run it (ConvParams::use_cudnn)."""
    too_wide = any(o >= s for o, s in zip(geometry.output_padding, geometry.stride, strict=True))
    return torch._C._get_cudnn_enabled() and not too_wide


def cudnn_takes_depthwise(input, weight, geometry: Geometry) -> bool:
    """Returns whether cuDNN runs a depthwise convolution (ConvParams::use_cudnn_depthwise).

    It does for channels_last, and for fp16 of sizes for which it is known to be faster.
    """
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
    """Returns the result of check_cudnn_depthwise_workload_with_filter (Convolution.cpp)."""
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


@decomposition("_convolution.default")
def convolution_of_a_trace(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *flags):
    """Decomposes _convolution into convolution, ignoring cuDNN's settings (aten/src/ATen/native/Convolution.cpp)."""
    given = (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    return torch.ops.aten.convolution.default(*given)
