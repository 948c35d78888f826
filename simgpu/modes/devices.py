"""Which device an argument names, in each way that PyTorch takes one."""

from numbers import Integral

import torch

from simgpu import machine as machines
from simgpu.handlers import handles

META = torch.device("meta")


def named(device) -> torch.device | None:
    """The device that an argument names: a str, a torch.device, the index of a GPU, or None for none."""
    if device is None or isinstance(device, torch.device):
        return device
    if isinstance(device, Integral):
        return torch.device("cuda", int(device))
    return torch.device(device)


def means_gpu(device) -> bool:
    """Whether an argument names the simulated GPU. AcceleratorError, as from CUDA, if it names one that is not there;
    NotModelledError if it names another rank's."""
    found = named(device)
    if found is None or found.type != "cuda":
        return False
    if found.index is not None:
        machines.check_number(found.index)
    return True


@handles(torch.device)
def device_from(mode, function, args, kwargs):
    """torch.device(0) is a GPU's, the accelerator's, which C++ would look for."""
    if args and type(args[0]) is int:
        return function("cuda", *args)
    if type(kwargs.get("device")) is int:
        return function("cuda", kwargs["device"])
    return function(*args, **kwargs)
