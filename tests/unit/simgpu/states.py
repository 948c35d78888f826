"""What a simulated GPU changes in torch and pynvml, to be compared before and after."""

import operator

import pynvml
import torch
import torch.utils._device  # which `import torch` alone need not have loaded
import torch.utils._python_dispatch

MODULES = [
    torch,
    torch._C,
    torch._C._autograd,
    torch.cuda,
    torch.cuda.memory,
    torch.cuda.random,
    torch.cuda.streams,
    torch.accelerator,
    torch.accelerator.memory,
    torch.autograd,
    torch.functional,
    torch.nn.functional,
    torch.nn.init,
    torch.overrides,
    torch.Tensor,
    torch.utils._device,
    torch.utils._python_dispatch,
    pynvml,
]


def state():
    return {module: dict(vars(module)) for module in MODULES}


def assert_same(before, after):
    for module in MODULES:
        # quick where nothing has changed at all; what was taken away and put back stands in another place
        if list(before[module]) == list(after[module]) and all(
            map(operator.is_, before[module].values(), after[module].values())
        ):
            continue
        names = before[module].keys() | after[module].keys()
        changed = {name for name in names if before[module].get(name) is not after[module].get(name)}
        assert not changed, (module.__name__, changed)
