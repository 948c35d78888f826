"""Functions that allocate what CUDA's implementations of convolution allocate, by making the same tensors as the C++
code.

Every operator that they call is seen. They free tensors in the order in which C++ destroys locals, latest first.
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch
from torch._prims_common import suggest_memory_format

from simgpu.autograd import accumulation
from simgpu.device import machine as machines
from simgpu.ops.convolution_geometry import CHANNELS_LAST, Geometry, cudnn_layout


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
