"""Raises PyTorch's errors for a tensor of a dtype other than a kernel reads, whose shape is right.

A CUDA kernel is chosen by the dtype of one tensor, and reads the others as of the same. PyTorch's meta kernels know
only shapes, so they accept any.
"""

import torch

# The names of a dtype in C++ (caffe2::TypeMeta), and in ATen (c10::ScalarType)
NAMES = {
    torch.float16: ("c10::Half", "Half"),
    torch.bfloat16: ("c10::BFloat16", "BFloat16"),
    torch.float32: ("float", "Float"),
    torch.float64: ("double", "Double"),
    torch.complex32: ("c10::complex<c10::Half>", "ComplexHalf"),
    torch.complex64: ("c10::complex<float>", "ComplexFloat"),
    torch.complex128: ("c10::complex<double>", "ComplexDouble"),
    torch.uint8: ("unsigned char", "Byte"),
    torch.int8: ("signed char", "Char"),
    torch.int16: ("short int", "Short"),
    torch.int32: ("int", "Int"),
    torch.int64: ("long int", "Long"),
    torch.bool: ("bool", "Bool"),
}
# ATen's names of dtypes that few kernels read
SELDOM = {
    getattr(torch, of_torch): of_aten
    for of_torch, of_aten in {
        "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64", "float8_e5m2": "Float8_e5m2",
        "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2fnuz": "Float8_e5m2fnuz",
        "float8_e4m3fnuz": "Float8_e4m3fnuz", "float8_e8m0fnu": "Float8_e8m0fnu",
    }.items()
}  # fmt: skip


# Dtypes with a tensor type of their own in Python, such as torch.cuda.FloatTensor
OF_OLD = {"Half", "Float", "Double", "Byte", "Char", "Short", "Int", "Long"}


def name(dtype: torch.dtype) -> str:
    """Returns ATen's name of a dtype, or Python's if it is not in the lists."""
    return NAMES[dtype][1] if dtype in NAMES else SELDOM.get(dtype, str(dtype))


def legacy_name(dtype: torch.dtype) -> str:
    """Returns PyTorch's name for CUDA tensors of a dtype in error messages (DeprecatedTypeProperties)."""
    of_old = name(dtype) in OF_OLD
    return f"torch.cuda.{name(dtype)}Tensor" if of_old else f"CUDA{name(dtype)}Type"


def not_implemented(kernel: str, dtype: torch.dtype) -> None:
    """Raises NotImplementedError, as aten/src/ATen/Dispatch.h does for a kernel without this dtype."""
    raise NotImplementedError(f"\"{kernel}\" not implemented for '{name(dtype)}'")


def read_as(dtype: torch.dtype, *tensors) -> None:
    """Raises RuntimeError, as aten/src/ATen/core/Tensor does (TensorMethods.cpp, data_ptr<T>), for a different
    dtype.
    """
    for tensor in tensors:
        if tensor is not None and tensor.dtype != dtype:
            raise RuntimeError(f"expected scalar type {name(dtype)} but found {name(tensor.dtype)}")
