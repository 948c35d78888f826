"""Inserts modes into, and removes them from, the two mode stacks that PyTorch keeps per thread, at any position.

PyTorch's own `with mode:` removes whatever is on top. That is the wrong mode if modes are not left in reverse order: a
simulated GPU that is entered in one notebook cell, inside a different mode, is left in a later cell. So a mode of the
simulated GPU goes below those of the user, who then leaves their own.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _device, _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.device.machine import Machine


def functions() -> list[TorchFunctionMode]:
    """Returns the function modes of this thread, the innermost last."""
    return overrides._get_current_function_mode_stack()


def dispatchers() -> list[TorchDispatchMode]:
    """Returns the dispatch modes of this thread, the innermost last, without those that have a slot of their own
    (fakes).
    """
    stack = _python_dispatch._get_current_dispatch_mode_stack()
    return [mode for mode in stack if getattr(mode, "_mode_key", None) is None]


def enter(mode) -> None:
    """Enters a mode above those of its kind and PyTorch's default device, and below all others."""
    with _above(_others_on_top(_stack_of(mode)(), type(mode)), mode):
        mode.__enter__()


def leave(mode) -> None:
    """Leaves a mode that was entered here; does nothing if this thread does not have it."""
    keep_once(mode)
    stack = _stack_of(mode)()
    if mode in stack:
        with _above(len(stack) - 1 - stack.index(mode), mode):
            mode.__exit__(None, None, None)


def keep_once(mode, times: int = 1) -> None:
    """Removes a mode that is on its stack more than `times` times.

    An interrupt may arrive just after `with mode:` has put it there, inside an operator.
    """
    stack = _stack_of(mode)()
    while stack.count(mode) > times:
        last = len(stack) - 1 - stack[::-1].index(mode)
        with _above(len(stack) - 1 - last, mode):
            _owner(mode)._pop_mode()
        stack = _stack_of(mode)()


def _stack_of(mode) -> Callable[[], list]:
    return functions if isinstance(mode, TorchFunctionMode) else dispatchers


def drop_stale(but: Collection = ()) -> None:
    """Removes the modes of GPUs that are off, except `but`, which a GPU below others removes when it goes off.

    PyTorch's own handling of modes can restore one late. If an interrupt arrives just as a mode that was disabled for a
    call is to be restored, that happens when its generator is collected.
    """
    for mode in {*functions(), *dispatchers()}.difference(but):
        machine = getattr(getattr(mode, "dispatch", mode), "machine", None)
        if isinstance(machine, Machine) and not machine.active:
            keep_once(mode, 0)


def _owner(mode):
    return overrides if isinstance(mode, TorchFunctionMode) else _python_dispatch


def _others_on_top(stack: list, kind: type) -> int:
    """Returns how many modes on top of the stack are neither of this kind nor PyTorch's default device.

    The default device is at the bottom (torch.set_default_device). A `with torch.device(...)` is on top, and removes
    itself.
    """
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    below = [number for number, mode in enumerate(stack) if isinstance(mode, kind) or mode is default]
    return len(stack) - 1 - below[-1] if below else len(stack)


def set_default_device(device: torch.device | None) -> None:
    """Calls torch.set_default_device, also inside a `with torch.device(...)`, where PyTorch's fails if there is a
    default.
    """
    default, stack = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), functions()
    above = len(stack) - 1 - stack.index(default) if default in stack else 0
    with _above(above, default):
        torch.set_default_device(device)


def below_default_device() -> torch.device | None:
    """Returns the device that would be the default if torch.set_default_device had not been called."""
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return _device.CURRENT_DEVICE if default is None else default.old_device


def leave_default_device(found: torch.device | None, below: torch.device | None) -> None:
    """Ends a default device; `found` is the previous one, and `below` the result of `below_default_device` at that
    time.

    PyTorch enters the mode of a default device again when a checkpoint is recomputed, and the mode then considers
    itself to be the previous one. After that, torch.set_default_device(None) does not end it, neither here nor in the
    program.
    """
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    for mode in functions():
        if isinstance(mode, _device.DeviceContext) and mode.prev_mode is mode:
            mode.prev_mode, mode.old_device = None, below
            if mode is not default:  # the program ended it
                keep_once(mode, 0)
                _device.CURRENT_DEVICE = below
    set_default_device(found)


@contextmanager
def _above(count: int, mode) -> Iterator[None]:
    """Removes the `count` modes on top of a mode's stack, inside the `with`."""
    owner = _owner(mode)
    taken = [owner._pop_mode() for _ in range(count)]
    try:
        yield
    finally:
        for one in reversed(taken):
            owner._push_mode(one)  # pyright: ignore[reportArgumentType]


@contextmanager
def disabled() -> Iterator[TorchFunctionMode]:
    """Disables the innermost function mode inside the `with`, like torch.overrides._pop_mode_temporarily.

    PyTorch's own loses the mode if a signal's handler raises just after the mode was removed, or just before it would
    be restored. Python runs handlers when a function of C returns or one of Python begins, so here only C is called.
    """
    mode = torch._C._get_function_stack_at(torch._C._len_torch_function_stack() - 1)
    try:
        overrides._pop_torch_function_stack()
        yield mode
    finally:
        overrides._push_on_torch_function_stack(mode)


@contextmanager
def none() -> Iterator[None]:
    """Disables all modes inside the `with`, for code that concerns only the host and may use its own modes."""
    stack = functions()
    with _python_dispatch._disable_current_modes(), _above(len(stack), stack[-1]) if stack else nullcontext():
        yield


@contextmanager
def also_here(modes) -> Iterator[None]:
    """Enables these modes in this thread too, inside the `with`, if they are not; for a thread that a program
    started.
    """
    missing = [mode for mode in modes if mode not in _stack_of(mode)()]
    owners = [_owner(mode) for mode in missing]
    for owner, mode in zip(owners, missing, strict=True):
        owner._push_mode(mode)
    try:
        yield
    finally:
        for owner in reversed(owners):
            owner._pop_mode()


@contextmanager
def as_outside(modes) -> Iterator[None]:
    """Enables these modes inside the `with` although an operator is running, for user code that it calls."""
    with torch._C._EnableTorchFunction(), also_here(modes):  # pyright: ignore[reportAttributeAccessIssue]
        yield


_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)


def dispatch_is_on() -> bool:
    """Returns whether this thread's dispatcher calls dispatch modes, or has none to call."""
    return torch._C._dispatch_tls_is_dispatch_key_included(_KEYS[0]) or torch._C._len_torch_dispatch_stack() == 0


def switch_dispatch_on() -> None:
    """Makes this thread's dispatcher call its dispatch modes.

    When torch.inference_mode is left, it restores the dispatch keys of its entry. A mode that was entered inside is
    then on the stack, but is not called.
    """
    for key in _KEYS:
        torch._C._dispatch_tls_set_dispatch_key_included(key, True)
