"""Runs compiled functions eagerly, and refuses GPU code that a program brings along."""

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import ModuleType

import torch
import torch.cuda._utils
from torch.utils import _pytree as pytree

from simgpu.device import machine as machines
from simgpu.device.machine import Machine
from simgpu.dispatch.fusion import Call, Region
from simgpu.errors import OTHER_ENGINE, NotModelledError
from simgpu.patches import Patches
from simgpu.storage import storage_map
from simgpu.unmodeled import COMPILING

# Refuses GPU code that a program brings along: Triton kernels, CUDA extensions, NVRTC.
# The modules that run them may be imported before the simulated GPU is on, or later, by the program.


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


# Runs compiled functions eagerly while a simulated GPU is on, with the time of inductor's fused kernels.
# Dynamo does not compile under modes, and inductor decides what a compiled program allocates. PyTorch's own stance
# "force_eager" runs every compiled function as it was written, also with fullgraph=True. So the memory is the eager
# program's. With the backend inductor, the time is that of the kernels that inductor would generate for the
# operators, forward and backward (dispatch/fusion.py), and of CUDA graphs if the compile mode requests them. A
# warning says so.

WITH_GRAPHS = ("reduce-overhead", "max-autotune")
"""The modes of torch.compile whose kernels CUDA graphs replay (torch._inductor.list_mode_options)."""


def patch(patches: Patches, machine: Machine) -> None:
    """Replaces torch.compile and Module.compile, and sets Dynamo's stance."""
    patches.apply(torch, "compile", told(machine, torch.compile))
    patches.apply(torch.nn.Module, "compile", told(machine, torch.nn.Module.compile))
    force_eager(patches)


def told(machine: Machine, compile_):
    """Wraps torch.compile or Module.compile (`compile_`), so that a compiled function reports how it runs."""

    @wraps(compile_)
    def compile(*args, **kwargs):
        eagerly = machine.active and torch._C._is_torch_function_mode_enabled() and not kwargs.get("disable")
        compiled = compile_(*args, **kwargs)
        if not eagerly:
            return compiled
        given = args[0] if args else kwargs.get("model", kwargs.get("self"))
        if given is None:  # a decorator, which calls this function later
            return compiled
        if compiled is None:  # Module.compile, which changes the module itself
            given._compiled_call_impl = noted(given._compiled_call_impl)
            return None
        if kwargs.get("backend", "inductor") == "inductor":
            return timed(compiled, with_graphs(kwargs))
        if isinstance(compiled, torch.nn.Module):
            compiled.forward = noted(compiled.forward)
            return compiled
        return noted(compiled)

    return compile


def noted(function):
    """Wraps a compiled function, so that its first call on the simulated GPU records that its figures are estimates."""

    @wraps(function)
    def run(*args, **kwargs):
        note()
        return function(*args, **kwargs)

    return run


def note() -> None:
    """Records that a compiled function runs eagerly."""
    machine = machines.current()
    if machine is not None and machine.active and torch._C._is_torch_function_mode_enabled():
        machine.unmodeled.add("torch.compile", COMPILING, lower_bound=False)


def with_graphs(options: dict) -> bool:
    """Returns whether these arguments of torch.compile request CUDA graphs."""
    return options.get("mode") in WITH_GRAPHS or bool((options.get("options") or {}).get("triton.cudagraphs"))


def timed(compiled, graphs: bool):
    """Wraps a compiled function or module, so that its operators go on the clock as the kernels that they are
    fused to.
    """
    if isinstance(compiled, torch.nn.Module):
        compiled.forward = _fused(compiled.forward, graphs)
        return compiled
    return _fused(compiled, graphs)


def _fused(function, graphs: bool):
    @wraps(function)
    def run(*args, **kwargs):
        machine = machines.current()
        if machine is None or not torch._C._is_torch_function_mode_enabled():
            return function(*args, **kwargs)
        note()
        clock = machine.clock
        if clock.region is not None and clock.region.over():
            clock.region.end()
        if clock.region is not None:
            return function(*args, **kwargs)  # it is compiled as a part of the outer function
        region = clock.region = Region(machine, Call(), graphs)
        sources = _nodes((args, kwargs))
        returned = frozenset()
        try:
            result = function(*args, **kwargs)
            returned = frozenset(filter(None, map(storage_map.of, _tensors(result))))
        finally:
            region.end(returned)
        _watch_backward(region, sources, _nodes(result))
        return result

    return run


def _tensors(values) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(values) if isinstance(one, torch.Tensor)]


def _nodes(values) -> set:
    """Returns the nodes of autograd's graph that made these tensors."""
    return {one.grad_fn for one in _tensors(values) if one.grad_fn is not None}


def _watch_backward(forward: Region, sources: set, results: set) -> None:
    """Makes what autograd runs between the results' and the inputs' nodes a region too."""
    machine = forward.machine
    now: list[Region] = []

    def enter(_):
        clock = machine.clock
        if not machine.active or (clock.region is not None and clock.region in now):
            return
        if clock.region is not None:
            if not clock.region.backward:
                return
            clock.region.end()
        clock.region = Region(machine, forward.call, forward.graphs, backward=True)
        now[:] = [clock.region]
        torch.autograd.Variable._execution_engine.queue_callback(leave)

    def leave(_=None):
        for region in now:
            region.end()
        now.clear()

    for node in results - sources:
        node.register_prehook(enter)
    for node in sources:
        node.register_prehook(leave)


def force_eager(patches: Patches) -> None:
    """Sets Dynamo's stance (torch.compiler.set_stance) until the patches are undone."""
    from torch._dynamo import eval_frame

    if eval_frame._stance.stance != "force_eager":
        patches.apply(eval_frame, "_stance", eval_frame.DynamoStance("force_eager"))
