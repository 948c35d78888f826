"""torch.compile while a simulated GPU is on: compiled functions run eagerly, at the time of inductor's fused kernels.

Dynamo does not compile under modes, and what a compiled program takes is inductor's to decide. PyTorch's own stance
"force_eager" has every compiled function run as it was written, also with fullgraph=True. Its memory is therefore the
eager program's; its time, with the backend inductor, is that of the kernels that inductor would make of its operators,
forward and backward (modes/fusion.py), and of CUDA graphs where its mode asks for them. What is told is that.
"""

from functools import wraps

import torch
from torch.utils import _pytree as pytree

from simgpu import machine as machines
from simgpu.left_out import COMPILING
from simgpu.machine import Machine
from simgpu.modes.fusion import Call, Region
from simgpu.patches import Patches
from simgpu.tensors import residence

WITH_GRAPHS = ("reduce-overhead", "max-autotune")
"""The modes of torch.compile whose kernels CUDA graphs replay (torch._inductor.list_mode_options)."""


def patch(patches: Patches, machine: Machine) -> None:
    """Puts it into torch."""
    patches.apply(torch, "compile", told(machine, torch.compile))
    patches.apply(torch.nn.Module, "compile", told(machine, torch.nn.Module.compile))
    force_eager(patches)


def told(machine: Machine, compile_):
    """torch.compile or Module.compile (`compile_` is PyTorch's own): says once how it runs."""

    @wraps(compile_)
    def compile(*args, **kwargs):
        eagerly = machine.active and torch._C._is_torch_function_mode_enabled() and not kwargs.get("disable")
        compiled = compile_(*args, **kwargs)
        if not eagerly:
            return compiled
        given = args[0] if args else kwargs.get("model", kwargs.get("self"))
        if given is None:  # a decorator, which calls this function again
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
    """A compiled function whose first call on the simulated GPU notes that its figures are an estimate."""

    @wraps(function)
    def run(*args, **kwargs):
        note()
        return function(*args, **kwargs)

    return run


def note() -> None:
    """Notes that a compiled function runs eagerly."""
    machine = machines.current()
    if machine is not None and machine.active and torch._C._is_torch_function_mode_enabled():
        machine.left_out.add("torch.compile", COMPILING, lower_bound=False)


def with_graphs(options: dict) -> bool:
    """Whether these arguments of torch.compile ask for CUDA graphs."""
    return options.get("mode") in WITH_GRAPHS or bool((options.get("options") or {}).get("triton.cudagraphs"))


def timed(compiled, graphs: bool):
    """A compiled function or module, whose operators go on the clock as the kernels that they would be fused to."""
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
            return function(*args, **kwargs)  # it is compiled as part of the function around it
        region = clock.region = Region(machine, Call(), graphs)
        sources = _nodes((args, kwargs))
        returned = frozenset()
        try:
            result = function(*args, **kwargs)
            returned = frozenset(filter(None, map(residence.of, _tensors(result))))
        finally:
            region.end(returned)
        _watch_backward(region, sources, _nodes(result))
        return result

    return run


def _tensors(values) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(values) if isinstance(one, torch.Tensor)]


def _nodes(values) -> set:
    """The nodes of autograd's graph that made these tensors."""
    return {one.grad_fn for one in _tensors(values) if one.grad_fn is not None}


def _watch_backward(forward: Region, sources: set, results: set) -> None:
    """Has what autograd runs between the results' nodes and those of the inputs be a region too."""
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
