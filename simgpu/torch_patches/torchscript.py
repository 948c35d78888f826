"""TorchScript on the simulated GPU: the functions that its compiler knows, modules that move, and torch.jit.load.

C++ reads a file of TorchScript and puts its tensors on their device without the dispatcher; a build without CUDA
refuses that, or ends the process. So a file is loaded on the host, and what belongs on the GPU is copied there in the
order of the file (torch/csrc/jit/serialization/import.cpp).
"""

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial, wraps
from typing import Any

import torch
import torch.jit._builtins

from simgpu.errors import OTHER_ENGINE, NotModelledError
from simgpu.patches import Patches

LOADS = "import_ir_module", "import_ir_module_from_buffer"
"""The functions of torch._C that torch.jit.load calls, with a path and with bytes (torch/jit/_serialization.py)."""


def patch(patches: Patches) -> None:
    """Puts it into torch. Comes after the other patches, because TorchScript's compiler must know them too."""
    table = torch.jit._builtins._get_builtin_table()
    for before, replacement in patches.replaced():
        name = table.get(id(before))
        if name is not None and id(replacement) not in table:
            table[id(replacement)] = name
            patches.when_undone(partial(table.pop, id(replacement), None))
    scripted: Any = torch.jit.RecursiveScriptModule
    patches.apply(scripted, "_apply", _moved_in_cpp(scripted._apply))
    for name in LOADS:
        patches.apply(torch._C, name, _through_the_host(getattr(torch._C, name)))


def _moved_in_cpp(apply):
    """RecursiveScriptModule._apply (`apply` is PyTorch's own): C++ holds the parameters, and `param.data = value`
    across devices gives a simulated tensor's implementation to the Python object alone."""

    @wraps(apply)
    def _apply(module, *args, **kwargs):
        parameters = dict(module._parameters.items())
        result = apply(module, *args, **kwargs)
        for name, tensor in parameters.items():
            module._parameters[name] = tensor
        return result

    return _apply


def _through_the_host(load):
    """A function of `LOADS` (`load` is PyTorch's own)."""

    @wraps(load)
    def import_module(unit, source, map_location=None, *args, **kwargs):
        places = _places(source) if map_location is None else []
        device = map_location if map_location is not None else next((one for one in places if one != "cpu"), None)
        if device is None or torch.device(device).type != "cuda":
            return load(unit, source, map_location, *args, **kwargs)
        if len(set(places)) > 1:
            raise NotModelledError(
                f"this file of TorchScript has tensors on {' and '.join(sorted(set(places)))}, which torch.jit.load "
                f'does not load on the simulated GPU: give map_location="cuda" or "cpu". {OTHER_ENGINE}'
            )
        module = load(unit, source, torch.device("cpu"), *args, **kwargs)
        moved = sum(_move(one, torch.device(device)) for one in _modules(module))
        if moved < (stored := len(_places(source))):
            raise NotModelledError(
                f"{stored - moved} of the {stored} tensors in this file of TorchScript are neither parameters nor "
                f"buffers (torch.jit.freeze makes constants of them), and torch.jit.load does not load those on the "
                f"simulated GPU. {OTHER_ENGINE}"
            )
        return module

    return import_module


def _modules(module) -> Iterator:
    """A module of C++ and those in it, in the order of the file."""
    yield module
    children: Any = torch._C.ModuleDict(module)
    for _, child in children.items():
        yield from _modules(child)


def _move(module, device: torch.device) -> int:
    """Copies the parameters and buffers of one module to a device, and returns how many there are."""
    moved = 0
    kinds: Any = (torch._C.ParameterDict, torch._C.BufferDict)
    for kind in kinds:
        held = kind(module)
        for name, tensor in held.items():
            with torch.no_grad():
                copy = tensor.detach().to(device)
            held.setattr(name, copy.requires_grad_(tensor.requires_grad))
            moved += 1
    return moved


class _Anything:
    """An object of any class in a pickle that is only looked at."""

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __setstate__(self, state):
        pass


class _Places(pickle.Unpickler):
    """Finds on which devices the tensors of a pickle were, and makes no object of it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self.found: list[str] = []

    def find_class(self, module, name):
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Anything

    def persistent_load(self, pid):
        self.found.append(str(pid[3]))
        return pid


def _places(source) -> list[str]:
    """The device of each tensor in a file of TorchScript, a path or bytes, as the file names it; [] for another file,
    which PyTorch itself refuses."""
    try:
        with zipfile.ZipFile(source if isinstance(source, (str, os.PathLike)) else io.BytesIO(source)) as archive:
            found = []
            for name in archive.namelist():
                if name.count("/") == 1 and name.endswith(("/data.pkl", "/constants.pkl")):
                    pickled = _Places(archive.read(name))
                    pickled.load()
                    found += pickled.found
            return found
    except (OSError, zipfile.BadZipFile, pickle.UnpicklingError, EOFError, ValueError):
        return []
