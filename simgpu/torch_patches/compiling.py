"""Runs compiled functions eagerly while a simulated GPU is on, with the time of inductor's fused kernels.

Dynamo does not compile under modes, and inductor decides what a compiled program allocates. PyTorch's own stance
"force_eager" runs every compiled function as it was written, also with fullgraph=True. So the memory is the eager
program's. With the backend inductor, the time is that of the kernels that inductor would generate for the operators,
forward and backward (dispatch/fusion.py), and of CUDA graphs if the compile mode requests them. A warning says so.
"""

from functools import wraps

import torch
from torch.utils import _pytree as pytree

from simgpu.device import machine as machines
from simgpu.device.machine import Machine
from simgpu.dispatch.fusion import Call, Region
from simgpu.patches import Patches
from simgpu.storage import storage_map
from simgpu.unmodeled import COMPILING

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
