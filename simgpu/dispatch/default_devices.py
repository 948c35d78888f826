"""Finds out which device an argument names, in each form that PyTorch accepts."""

from numbers import Integral

import torch

from simgpu.device import machine as machines
from simgpu.handlers import handles

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
