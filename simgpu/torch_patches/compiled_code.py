"""Refuses GPU code that a program brings along: Triton kernels, CUDA extensions, NVRTC.

The modules that run them may be imported before the simulated GPU is on, or later, by the program.
"""

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import torch.cuda._utils

from simgpu.errors import OTHER_ENGINE, NotModelledError
from simgpu.patches import Patches


@contextlib.contextmanager
def refused(patches: Patches) -> Iterator[None]:
    """Makes what runs such code raise NotModelledError inside the `with`, also in modules that are imported there.

    `patches` restores what is replaced.
    """
    for owner in (torch.cuda, torch.cuda._utils):
        for name in ("_compile_kernel", "_nvrtc_compile", "_cuda_load_module"):
            if hasattr(owner, name):
                patches.apply(owner, name, _refusal("a CUDA kernel that NVRTC compiles (torch.cuda._compile_kernel)"))
    for name, change in _CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name], patches)
    finder = _Finder(patches)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if sys.meta_path is not None:  # None while Python shuts down
            sys.meta_path.remove(finder)


def _refusal(what: str):
    def refuse(*args, **kwargs):
        raise NotModelledError(f"the simulated GPU runs PyTorch's own operators, and not {what}. {OTHER_ENGINE}")

    return refuse


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `_CHANGES` as Python does, and changes them once they are loaded."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches

    def find_spec(self, fullname, path, target=None):
        change = _CHANGES.get(fullname)
        if change is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        load, loader = spec.loader.exec_module, spec.loader

        def exec_module(module):
            vars(loader).pop("exec_module")
            load(module)
            change(module, self.patches)

        vars(loader)["exec_module"] = exec_module
        return spec


def _triton_kernel(module: ModuleType, patches: Patches) -> None:
    """Changes triton.runtime.jit, where JITFunction.run launches kernels."""

    def run(kernel, *args, **kwargs):
        _refusal(f"the Triton kernel {getattr(kernel, '__name__', kernel)!r}")()

    patches.apply(module.JITFunction, "run", run)


def _triton_driver(module: ModuleType, patches: Patches) -> None:
    """Changes triton.backends.nvidia.driver, which anything else in Triton that needs a GPU creates first.

    Autotuning is an example.
    """
    patches.apply(module.CudaDriver, "__init__", _refusal("Triton kernels"))


def _extensions(module: ModuleType, patches: Patches) -> None:
    """Changes load and load_inline of torch.utils.cpp_extension; extensions in C++ alone are built as usual."""
    compile_ = module._jit_compile

    def _jit_compile(name, sources, *args, **kwargs):
        if any(map(module._is_cuda_file, sources)):
            _refusal(f"the CUDA extension {name!r}")()
        return compile_(name, sources, *args, **kwargs)

    patches.apply(module, "_jit_compile", _jit_compile)


_CHANGES: dict[str, Callable[[ModuleType, Patches], None]] = {
    "triton.runtime.jit": _triton_kernel,
    "triton.backends.nvidia.driver": _triton_driver,
    "torch.utils.cpp_extension": _extensions,
}
