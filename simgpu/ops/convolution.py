"""Selects the implementation of a convolution as CUDA does (aten/src/ATen/native/Convolution.cpp; see `_backends`).

With cuDNN on, most convolutions are cuDNN's. Outputs, gradients and copies are PyTorch's and are modelled completely.
The workspace that cuDNN's engine requests during the call is not: cuDNN chooses its size, which is known only on a GPU.
With cuDNN off (`torch.backends.cudnn.enabled = False`), PyTorch's own kernels run, and everything is modelled.
"""

import torch

from simgpu import unmodeled
from simgpu.checks.devices import type_of
from simgpu.checks.scalar_types import name, not_implemented
from simgpu.device import machine as machines
from simgpu.ops.convolution_backends import (
    CUDNN,
    DEPTHWISE_2D,
    DEPTHWISE_3D,
    DILATED,
    EMPTY,
    PLAIN,
    TRANSPOSED,
    Backend,
    sum_over_positions,
)
from simgpu.ops.convolution_geometry import Geometry, cudnn_layout
from simgpu.ops.op_call import decomposition


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
