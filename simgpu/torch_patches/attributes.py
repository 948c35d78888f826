"""Replaces attributes of torch that PyTorch uses without calling a mode, while a simulated GPU is on."""

import contextlib
from functools import wraps

import torch
import torch.export
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves

from simgpu.autograd import accumulation, sequence_numbers
from simgpu.clock import workers
from simgpu.device import machine as machines
from simgpu.dispatch import stacks
from simgpu.dispatch.default_devices import means_gpu
from simgpu.dispatch.function_mode import FunctionMode
from simgpu.dispatch.stages import all_meta
from simgpu.errors import NESTED, NotModelledError, naming_cuda, naming_cuda_types
from simgpu.patches import Patches
from simgpu.storage import side_streams, storage_map
from simgpu.storage.storage_map import on_gpu


def patch(patches: Patches, mode: FunctionMode) -> None:
    """Replaces them in torch; `mode` is the GPU's function mode."""
    patches.apply(torch.overrides, "_pop_mode_temporarily", stacks.disabled)
    patches.apply(torch.Tensor, "record_stream", record_stream)
    patches.apply(torch.Tensor, "pin_memory", pin_memory)
    patches.apply(torch.Tensor, "set_", naming_cuda(torch.Tensor.set_))
    made = wrapped_on_meta(torch.Tensor._make_wrapper_subclass)
    patches.apply(torch._C._nested, "nested_tensor", jagged_only(torch._C._nested.nested_tensor))  # pyright: ignore[reportAttributeAccessIssue]
    patches.apply(torch.Tensor, "_make_wrapper_subclass", staticmethod(made))
    run_backward = sequence_numbers.counted_apart(torch.autograd._engine_run_backward)
    run_backward = side_streams.as_it_was(naming_cuda_types(accumulation.letting_go(run_backward)))
    patches.apply(torch.autograd, "_engine_run_backward", with_roots(mode, run_backward))
    push_hooks = torch._C._autograd._push_saved_tensors_default_hooks  # pyright: ignore[reportAttributeAccessIssue]
    patches.apply(
        torch._C._autograd,  # pyright: ignore[reportAttributeAccessIssue]
        "_push_saved_tensors_default_hooks",
        lambda pack, unpack: push_hooks(seen_by(mode, pack), seen_by(mode, unpack)),
    )
    # cuDNN's RNN is not modelled (ops/rnn.py), and neither is the one buffer that its weights would be copied
    # into
    patches.apply(torch, "_use_cudnn_rnn_flatten_weight", lambda: False)
    patches.apply(torch.export, "export", traced_on_the_cpu(mode, torch.export.export))
    for name in ("trace", "trace_module"):
        patches.apply(torch.jit, name, traced_in_cpp(mode, getattr(torch.jit, name)))
    profile = torch.autograd.profiler.profile
    patches.apply(profile, "__init__", host_only(profile.__init__))
    kineto = torch.profiler.profiler._KinetoProfile
    patches.apply(kineto, "__init__", of_the_host(kineto.__init__))
    patches.apply(torch.autograd, "_supported_activities", lambda: {torch.profiler.ProfilerActivity.CPU})


def jagged_only(make):
    """Wraps torch._C._nested.nested_tensor (`make`), and refuses nested tensors of strided layout."""

    def nested_tensor(*args, **kwargs):
        if means_gpu(kwargs.get("device")):
            raise NotModelledError(NESTED)
        return make(*args, **kwargs)

    return nested_tensor


def with_roots(mode: FunctionMode, run):
    """Wraps torch.autograd._engine_run_backward (`run`), so that tensors made for meta roots are meta tensors.

    This concerns only roots that are PyTorch's own meta tensors.
    """

    @wraps(run)
    def run_backward(roots, *args, **kwargs):
        here = mode.dispatch.here
        given, here.given = here.given, (roots,) if all_meta(roots) else ()
        try:
            return run(roots, *args, **kwargs)
        finally:
            here.given = given

    return run_backward


def wrapped_on_meta(make):
    """Wraps torch.Tensor._make_wrapper_subclass (`make`), so that a wrapper of simulated tensors is a meta tensor like
    them.

    Otherwise autograd would look for CUDA's streams.
    """

    def told(value):
        return torch.device("meta") if isinstance(value, torch.device) and means_gpu(value) else value

    @wraps(make)
    def make_wrapper_subclass(*args, **kwargs):
        if isinstance(kwargs.get("device"), (str, int)):
            kwargs["device"] = torch.device(kwargs["device"])
        return make(*map(told, args), **{name: told(value) for name, value in kwargs.items()})

    return make_wrapper_subclass


def seen_by(mode: FunctionMode, hook):
    """Wraps a saved-tensor hook so that it runs with the mode on.

    PyTorch calls it from inside an operator, where the mode is off or disabled (`dispatcher` runs CUDA's branches in
    this way).
    """

    def call(argument):
        with torch._C._EnableTorchFunction():
            if mode in _get_current_function_mode_stack():  # a GPU around this one has its own mode there
                return hook(argument)
            with mode:
                return hook(argument)

    return call


@contextlib.contextmanager
def open_hooks_seen(mode: FunctionMode):
    """Makes saved-tensor hooks from outside the GPU (save_on_cpu) run with the mode on, inside the `with`.

    PyTorch calls only the innermost pair of hooks, so this pair replaces it.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore[reportAttributeAccessIssue]
    if hooks is None:
        yield
        return
    torch._C._autograd._push_saved_tensors_default_hooks(*hooks)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch._C._autograd._pop_saved_tensors_default_hooks()  # pyright: ignore[reportAttributeAccessIssue]


def traced_on_the_cpu(mode: FunctionMode, export):
    """Wraps torch.export.export (`export`), so that a model on the CPU is exported as without a GPU.

    Its modes and the simulated GPU's cannot be combined.
    """

    @wraps(export)
    def call(mod, args=(), kwargs=None, **options):
        if mode not in _get_current_function_mode_stack():
            return export(mod, args, kwargs, **options)
        if _any_simulated(mod, (args, kwargs)):
            raise NotModelledError(
                "torch.export of a model or of arguments on the simulated GPU is not modelled: export them on the CPU, "
                "and move what comes of it"
            )
        with stacks.none():
            return export(mod, args, kwargs, **options)

    return call


def _any_simulated(function, arguments) -> bool:
    """Returns whether the arguments are simulated tensors, or parameters or buffers of `function` if it is a module."""
    state = [*function.parameters(), *function.buffers()] if isinstance(function, torch.nn.Module) else []
    given = [one for one in tree_leaves(arguments) if isinstance(one, torch.Tensor)]
    return any(storage_map.of(one) is not None for one in (*state, *given))


TRACING = "the copies and the second trace of its check, which compares values"


def traced_in_cpp(mode: FunctionMode, trace):
    """Wraps torch.jit.trace or trace_module (`trace`) so that it runs without the function mode.

    The tracer records in C++ which sizes a call is given, and a function mode would make it record them twice. The
    dispatch mode stays on. The trace is not checked, because that compares values.
    """

    @wraps(trace)
    def call(func, *args, **kwargs):
        if mode not in _get_current_function_mode_stack() or not _any_simulated(func, (args, kwargs)):
            return trace(func, *args, **kwargs)
        machines.on().unmodeled.add("torch.jit.trace", TRACING)
        with torch._C.DisableTorchFunction():
            return trace(func, *args, **{**kwargs, "check_trace": False})

    return call


NO_CUPTI = (
    "torch.profiler records the host alone on a simulated GPU: CUPTI has no CUDA kernels to report, and the times are "
    "those of this machine. torch.cuda.memory._record_memory_history() records memory, and torch.cuda.Event and "
    "labkit.stopwatch() read the simulated clock."
)


def host_only(init):
    """Wraps torch.autograd.profiler.profile.__init__ (`init`): profiles the host only, and warns once."""

    @wraps(init)
    def __init__(profile, enabled=True, *, use_cuda=False, use_device=None, **kwargs):
        if enabled and (use_cuda or use_device == "cuda"):
            machines.on().unmodeled.say("torch.profiler", NO_CUPTI)
            use_cuda, use_device = False, None
        init(profile, enabled, use_cuda=use_cuda, use_device=use_device, **kwargs)

    return __init__


def of_the_host(init):
    """Wraps torch.profiler.profile's `init` in the same way; it creates such a profile only when its schedule says
    so.
    """
    cpu, cuda = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA

    @wraps(init)
    def __init__(profile, *args, **kwargs):
        init(profile, *args, **kwargs)
        if cuda in profile.activities:
            machines.on().unmodeled.say("torch.profiler", NO_CUPTI)
            profile.activities = {*profile.activities, cpu} - {cuda}
            profile.use_device = None

    return __init__


def record_stream(tensor, stream) -> None:
    """Implements Tensor.record_stream: the block is not reused before `stream` has done its work.

    PyTorch's own checks the stream's type before it calls a function mode, so this one replaces it as an attribute of
    torch.Tensor.
    """
    place = storage_map.of(tensor)
    if place is not None and place.block is not None:
        place.machine.allocator.record_stream(place.block, stream.stream_id)


def pin_memory(tensor, device=None):
    """Implements Tensor.pin_memory: returns a copy that is marked as pinned, in ordinary memory.

    Simulated tensors are marked themselves. The host takes its time for the copy. It is an attribute of torch.Tensor
    too, because DataLoader calls it in a thread without modes; that thread has a lane of its own.
    """
    if on_gpu(tensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    if storage_map.is_pinned(tensor.untyped_storage()):
        return tensor
    made = tensor if storage_map.of(tensor) is not None else tensor.clone()
    storage_map.pin(made.untyped_storage())
    machine = machines.current()
    if machine is not None:
        machine.allocator.read_settings()
    if machine is not None and not workers.pinning.apart:
        machine.clock.pass_time(machine.clock.pinning(made.nbytes), "pins")
    return made
