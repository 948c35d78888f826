"""Finds out which device an argument names, and answers a tensor's attributes for the simulated GPU."""

from numbers import Integral

import torch

from simgpu.device import machine as machines
from simgpu.handlers import handles
from simgpu.storage import storage_map
from simgpu.storage.storage_map import on_gpu

# Finds out which device an argument names, in each form that PyTorch accepts.

META = torch.device("meta")


def named(device) -> torch.device | None:
    """Returns the device that an argument names: a str, a torch.device, the index of a GPU, or None."""
    if device is None or isinstance(device, torch.device):
        return device
    if isinstance(device, Integral):
        return torch.device("cuda", int(device))
    return torch.device(device)


def means_gpu(device) -> bool:
    """Returns whether an argument names the simulated GPU.

    Raises AcceleratorError, as CUDA does, if it names a GPU that does not exist, and NotModelledError for another
    rank's.
    """
    found = named(device)
    if found is None or found.type != "cuda":
        return False
    if found.index is not None:
        machines.check_number(found.index)
    return True


@handles(torch.device)
def device_from(mode, function, args, kwargs):
    """Makes torch.device(0) a GPU, because C++ would look for the accelerator."""
    if args and type(args[0]) is int:
        return function("cuda", *args)
    if type(kwargs.get("device")) is int:
        return function("cuda", kwargs["device"])
    return function(*args, **kwargs)


# Implements a tensor's attributes for the simulated GPU: its device, whether it is CUDA's, its address.

Tensor = torch.Tensor

_GETTERS = ("dtype", "grad", "grad_fn", "is_leaf", "is_sparse", "itemsize", "layout", "ndim", "requires_grad", "shape")
OF_ITSELF = frozenset(
    [getattr(Tensor, name).__get__ for name in _GETTERS]
    + [of.is_complex for of in (torch, Tensor)]
    + [of.is_floating_point for of in (torch, Tensor)]
    + [Tensor.dim]
)
"""Attributes that are the same for a simulated and a CUDA tensor, run no operator, and are read very often."""


@handles(Tensor.device.__get__)
def device(mode, function, args, kwargs):
    """Implements Tensor.device: "cuda:0", the index of a rank's GPU, or "cpu" for a simulated tensor."""
    found = function(*args)
    return storage_map.device_of(args[0]) if found == META else found


@handles(Tensor.is_cuda.__get__)  # pyright: ignore[reportAttributeAccessIssue]
def is_cuda(mode, function, args, kwargs):
    """Implements Tensor.is_cuda: whether the tensor is on the simulated GPU."""
    return on_gpu(args[0])


@handles(Tensor.is_meta.__get__, Tensor.is_cpu.__get__)  # pyright: ignore[reportAttributeAccessIssue]
def is_elsewhere(mode, function, args, kwargs):
    """Implements Tensor.is_meta and Tensor.is_cpu: a simulated tensor is never meta."""
    kind = "meta" if function == Tensor.is_meta.__get__ else "cpu"  # pyright: ignore[reportAttributeAccessIssue]
    return storage_map.device_of(args[0]).type == kind


@handles(Tensor.get_device, torch.get_device)
def get_device(mode, function, args, kwargs):
    """Implements Tensor.get_device: the index of the simulated GPU, or -1 on the host."""
    where = storage_map.device_of(args[0])
    return where.index if where.type == "cuda" else function(*args) if where == META else -1


@handles(Tensor.data_ptr)
def data_ptr(mode, function, args, kwargs):
    """Implements Tensor.data_ptr: the address in the simulated GPU's memory.

    For a host tensor without values it is a number by which programs can see whether tensors share memory. For a tensor
    that wraps others (a DTensor, a jagged one) it is 0.
    """
    if hasattr(type(args[0]), "__tensor_flatten__"):
        return 0
    place = storage_map.of(args[0])
    if place is None or not place.address:
        return function(*args)
    return place.address + args[0].storage_offset() * args[0].element_size()
