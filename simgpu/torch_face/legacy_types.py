"""The tensor types of old, torch.cuda.FloatTensor and its kin: as constructors, in isinstance, and as the default."""

from typing import Any

import torch

from simgpu.machine import cuda
from simgpu.modes.function_mode import FunctionMode
from simgpu.patches import Patches
from simgpu.tensors.residence import on_gpu

NAMES = ["Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool"]


def patch(patches: Patches, mode: FunctionMode) -> None:
    """Puts them into torch.cuda; `mode` is the GPU's."""
    for name in (f"{kind}Tensor" for kind in NAMES):
        patches.apply(torch.cuda, name, CudaType(name, getattr(torch, name)))
    set_default = torch._C._set_default_tensor_type
    patches.apply(torch._C, "_set_default_tensor_type", default_setter(patches, mode, set_default))


class CudaType(type):
    """The class of torch.cuda.FloatTensor, say: no tensor is its direct instance, isinstance asks device and dtype."""

    on_host: Any
    dtype: torch.dtype
    layout: torch.layout
    is_cuda: bool
    is_sparse: bool

    def __new__(cls, name, on_host):
        made = super().__new__(cls, name, (), {"__module__": "torch.cuda"})
        made.on_host = on_host  # torch.FloatTensor, say
        made.dtype, made.layout = on_host.dtype, on_host.layout
        made.is_cuda, made.is_sparse = True, False
        return made

    def __init__(cls, name, on_host):
        super().__init__(name, (), {})

    def __instancecheck__(cls, instance):
        return isinstance(instance, torch.Tensor) and instance.dtype == cls.dtype and on_gpu(instance)

    def __call__(cls, *args):
        """torch/csrc/utils/tensor_new.cpp, legacy_tensor_generic_ctor_new: of nothing, of a tensor of this type, of a
        size, or of data."""
        if args and isinstance(args[0], torch.Tensor):
            if not isinstance(args[0], cls):
                raise TypeError(f"expected {cls.__module__}.{cls.__name__} (got {args[0].type()})")
            return args[0].detach()
        if not args or isinstance(args[0], (int, torch.Size)):
            return torch.empty(*(args or (0,)), dtype=cls.dtype, device=cuda())
        return torch.tensor(*args, dtype=cls.dtype, device=cuda())


def default_setter(patches: Patches, mode: FunctionMode, set_default):
    """torch._C._set_default_tensor_type (`set_default` is PyTorch's own): a CUDA type also makes the GPU the place
    of tensors that are made without a word about the device, and is what torch.Tensor(...) makes."""

    def call(kind):
        mode.default_type_on_gpu = kind if isinstance(kind, CudaType) else None
        set_default(kind.on_host if isinstance(kind, CudaType) else kind)
        if isinstance(kind, CudaType) and "__new__" not in vars(torch.Tensor):
            patches.apply(torch.Tensor, "__new__", of_default_type(mode, torch.Tensor.__new__))

    return call


def of_default_type(mode: FunctionMode, new):
    """torch.Tensor(...), of which `new` is PyTorch's (tensor_new.cpp, base_tensor_ctor): of the default type."""

    def call(kind, *args, **kwargs):
        default = mode.default_type_on_gpu
        if kind is not torch.Tensor or default is None or kwargs:
            return new(kind, *args, **kwargs)
        return default(*args)

    return call
