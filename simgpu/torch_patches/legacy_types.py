"""Implements the legacy tensor types (torch.cuda.FloatTensor and so on): as constructors, in isinstance, as the
default.
"""

from typing import Any

import torch

from simgpu.device.machine import cuda
from simgpu.dispatch.function_mode import FunctionMode
from simgpu.patches import Patches
from simgpu.storage.storage_map import on_gpu

NAMES = ["Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool"]


def patch(patches: Patches, mode: FunctionMode) -> None:
    """Puts them into torch.cuda; `mode` is the GPU's function mode."""
    for name in (f"{kind}Tensor" for kind in NAMES):
        patches.apply(torch.cuda, name, CudaType(name, getattr(torch, name)))
    set_default = torch._C._set_default_tensor_type
    patches.apply(torch._C, "_set_default_tensor_type", default_setter(patches, mode, set_default))


class CudaType(type):
    """The class of types such as torch.cuda.FloatTensor.

    They have no direct instances: isinstance checks device and dtype.
    """

    on_host: Any
    dtype: torch.dtype
    layout: torch.layout
    is_cuda: bool
    is_sparse: bool

    def __new__(cls, name, on_host):
        made = super().__new__(cls, name, (), {"__module__": "torch.cuda"})
        made.on_host = on_host  # for example torch.FloatTensor
        made.dtype, made.layout = on_host.dtype, on_host.layout
        made.is_cuda, made.is_sparse = True, False
        return made

    def __init__(cls, name, on_host):
        super().__init__(name, (), {})

    def __instancecheck__(cls, instance):
        return isinstance(instance, torch.Tensor) and instance.dtype == cls.dtype and on_gpu(instance)

    def __call__(cls, *args):
        """Makes a tensor of nothing, of a tensor of this type, of a size, or of data.

        (torch/csrc/utils/tensor_new.cpp, legacy_tensor_generic_ctor_new)
        """
        if args and isinstance(args[0], torch.Tensor):
            if not isinstance(args[0], cls):
                raise TypeError(f"expected {cls.__module__}.{cls.__name__} (got {args[0].type()})")
            return args[0].detach()
        if not args or isinstance(args[0], (int, torch.Size)):
            return torch.empty(*(args or (0,)), dtype=cls.dtype, device=cuda())
        return torch.tensor(*args, dtype=cls.dtype, device=cuda())


def default_setter(patches: Patches, mode: FunctionMode, set_default):
    """Wraps torch._C._set_default_tensor_type (`set_default`) for CUDA types.

    A CUDA type also makes the GPU the device of tensors that are made without a `device`, and is what torch.Tensor(...)
    makes.
    """

    def call(kind):
        mode.default_type_on_gpu = kind if isinstance(kind, CudaType) else None
        set_default(kind.on_host if isinstance(kind, CudaType) else kind)
        if isinstance(kind, CudaType) and "__new__" not in vars(torch.Tensor):
            patches.apply(torch.Tensor, "__new__", of_default_type(mode, torch.Tensor.__new__))

    return call


def of_default_type(mode: FunctionMode, new):
    """Wraps torch.Tensor(...) (`new`; tensor_new.cpp, base_tensor_ctor), which makes a tensor of the default type."""

    def call(kind, *args, **kwargs):
        default = mode.default_type_on_gpu
        if kind is not torch.Tensor or default is None or kwargs:
            return new(kind, *args, **kwargs)
        return default(*args)

    return call
