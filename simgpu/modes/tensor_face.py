"""What a tensor says of itself: its device, whether it is CUDA's, its address."""

import torch

from simgpu.handlers import handles
from simgpu.modes.devices import META
from simgpu.tensors import residence
from simgpu.tensors.residence import on_gpu

Tensor = torch.Tensor

_GETTERS = ("dtype", "grad", "grad_fn", "is_leaf", "is_sparse", "itemsize", "layout", "ndim", "requires_grad", "shape")
OF_ITSELF = frozenset(
    [getattr(Tensor, name).__get__ for name in _GETTERS]
    + [of.is_complex for of in (torch, Tensor)]
    + [of.is_floating_point for of in (torch, Tensor)]
    + [Tensor.dim]
)
"""What says the same of a simulated tensor as of one of CUDA's, runs no operator, and is asked all the time."""


@handles(Tensor.device.__get__)
def device(mode, function, args, kwargs):
    """Tensor.device: "cuda:0", or the number of a rank's GPU, or "cpu" for a simulated tensor."""
    found = function(*args)
    return residence.device_of(args[0]) if found == META else found


@handles(Tensor.is_cuda.__get__)  # pyright: ignore[reportAttributeAccessIssue]
def is_cuda(mode, function, args, kwargs):
    """Tensor.is_cuda: whether the tensor is on the simulated GPU."""
    return on_gpu(args[0])


@handles(Tensor.is_meta.__get__, Tensor.is_cpu.__get__)  # pyright: ignore[reportAttributeAccessIssue]
def is_elsewhere(mode, function, args, kwargs):
    """Tensor.is_meta and Tensor.is_cpu: no simulated tensor is meta."""
    kind = "meta" if function == Tensor.is_meta.__get__ else "cpu"  # pyright: ignore[reportAttributeAccessIssue]
    return residence.device_of(args[0]).type == kind


@handles(Tensor.get_device, torch.get_device)
def get_device(mode, function, args, kwargs):
    """Tensor.get_device: the number of the simulated GPU, -1 on the host."""
    where = residence.device_of(args[0])
    return where.index if where.type == "cuda" else function(*args) if where == META else -1


@handles(Tensor.data_ptr)
def data_ptr(mode, function, args, kwargs):
    """Tensor.data_ptr: the address in the simulated GPU's memory; of a tensor of the host without values, a number by
    which programs tell whether tensors share memory; 0 of a tensor that is made of others (a DTensor, a jagged one)."""
    if hasattr(type(args[0]), "__tensor_flatten__"):
        return 0
    place = residence.of(args[0])
    if place is None or not place.address:
        return function(*args)
    return place.address + args[0].storage_offset() * args[0].element_size()
