"""Makes tensors from data (torch.tensor and similar): from numbers, arrays, and tensors on any device."""

import operator

import torch

from simgpu.dispatch.default_devices import means_gpu
from simgpu.dispatch.moves import moved, of_pytorch
from simgpu.handlers import handles
from simgpu.storage import storage_map
from simgpu.storage.storage_map import CPU, on_gpu

Tensor = torch.Tensor
_NAMES = {torch.asarray: "obj", torch.scalar_tensor: "s"}  # the data argument's name, if it is not "data"


@handles(torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, Tensor.new_tensor)
def from_data(mode, function, args, kwargs):
    """Implements torch.tensor and similar: the data becomes a host tensor, which is copied to the GPU if requested."""
    kwargs = dict(kwargs)
    like = args[0] if function is Tensor.new_tensor else None
    rest = args[1:] if like is not None else args
    source = rest[0] if rest else kwargs.pop(_NAMES.get(function, "data"))
    device = kwargs.pop("device", None)
    if device is None:
        found = like if like is not None else source if isinstance(source, Tensor) else None
        device = None if found is None else storage_map.device_of(found)
    if isinstance(source, Tensor) and (means_gpu(device) or storage_map.of(source) is not None):
        return of_tensor(mode, function, source, device, **kwargs)
    if isinstance(source, (list, tuple)):
        read = read_in(mode, source)
        args = tuple(read if one is source else one for one in args)
        source = read
    if not means_gpu(device):
        return of_pytorch(mode, device, function, args, kwargs if device is None else {**kwargs, "device": device})
    requires_grad = kwargs.pop("requires_grad", False)
    kwargs.pop("pin_memory", None)
    if like is not None:
        kwargs.setdefault("dtype", like.dtype)
    host = torch.tensor if like is not None else function
    return moved(mode, host(source, **kwargs, device=CPU), mode.dispatch.machine.cuda).requires_grad_(requires_grad)


def of_tensor(mode, function, source, device, dtype=None, copy=None, requires_grad=False, pin_memory=False):
    """Makes a tensor from a tensor: torch.as_tensor and torch.asarray copy if they must, the others always.

    (torch/csrc/utils/tensor_new.cpp)
    """
    if function is torch.as_tensor:
        return moved(mode, source, device, dtype)
    if function is torch.asarray:
        there = moved(mode, source, device, dtype)
        made = there.clone() if copy and there is source else there
        if made.requires_grad == requires_grad:
            return made
        return made.requires_grad_() if requires_grad else made.detach()
    return moved(mode, source.detach(), device, dtype, copy=True).requires_grad_(requires_grad)


def read_in(mode, data):
    """Replaces each simulated tensor in nested lists by a host tensor with its values; returns `data` itself if
    none.
    """
    if isinstance(data, (list, tuple)):
        read = [read_in(mode, one) for one in data]
        return data if all(map(operator.is_, read, data)) else read
    if not isinstance(data, Tensor) or storage_map.of(data) is None:
        return data
    with mode:
        numbers = data.item() if data.numel() == 1 else data.tolist()
    return torch.tensor(numbers, dtype=data.dtype, device=CPU).reshape(data.shape)


@handles(Tensor.new)
def new(mode, function, args, kwargs):
    """Implements the legacy constructor: `x.new(3, 4)` and `x.new(size)` are empty tensors, `x.new([1, 2])` holds
    data.
    """
    tensor, *rest = args
    if not on_gpu(tensor) or not rest or isinstance(rest[0], (int, torch.Size, Tensor)):
        return function(*args, **{name: value for name, value in kwargs.items() if name != "device"})
    if not isinstance(rest[0], (list, tuple)) and not hasattr(rest[0], "__array__"):
        return function(*args, **kwargs)  # a storage
    return from_data(mode, torch.tensor, rest, {"dtype": tensor.dtype, "device": mode.dispatch.machine.cuda})
