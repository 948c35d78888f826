"""Finds whose memory is whose: parameters, gradients and optimizer states, by the addresses of their tensors."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from simgpu.running.script import StepsDone
from simgpu.running.stub.history import GRADIENTS, PARAMETERS, STATES


class Owners:
    """Notes owners before and after each step of an optimizer, and at the end.

    `marks`: of each look, how many allocations there had been, and the owner of each address. `windows`: of each
    backward pass and each step, its kind and how many allocations there had been at its begin and at its end. `count`
    returns how many there have been. With `limit`, StepsDone is raised after so many steps of every optimizer.
    """

    def __init__(self, count: Callable[[], int], limit: int | None):
        self.marks: list[tuple[int, dict[int, str]]] = []
        self.windows: list[tuple[str, int, int]] = []
        self.steps = 0
        self._count, self._limit = count, limit
        self._counts: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._began = 0
        self._next_look = 1
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def _before(self, optimizer, args, kwargs) -> None:
        if torch.compiler.is_compiling():
            return
        if self._limit is not None and self._counts.get(optimizer, 0) >= self._limit:
            raise StepsDone
        self._began = self._count()
        self._mark(_of_optimizer(optimizer))

    def _after(self, optimizer, args, kwargs) -> None:
        if torch.compiler.is_compiling():
            return
        self.windows.append(("step", self._began, self._count()))
        made = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self.steps = max(self.steps, made)
        self._mark(_of_optimizer(optimizer))
        if made >= self._next_look:
            self._next_look *= 2
            self.look()
        if self._limit is not None and all(self._counts.get(one, 0) >= self._limit for one in _alive(Optimizer)):
            raise StepsDone

    def backward(self, engine: Callable) -> Callable:
        """PyTorch's function that runs autograd's engine, with a window around it."""

        def run(*args, **kwargs):
            began = self._count()
            try:
                return engine(*args, **kwargs)
            finally:
                self.windows.append(("backward", began, self._count()))

        return run

    def look(self) -> None:
        """Asks every module and every optimizer that is alive."""
        found: dict[int, str] = {}
        for module in _alive(nn.Module):
            for parameter in vars(module).get("_parameters", {}).values():
                if isinstance(parameter, torch.Tensor):
                    found |= _of_parameter(parameter)
            for buffer in vars(module).get("_buffers", {}).values():
                found |= _of_tensor(buffer, PARAMETERS)
        for optimizer in _alive(Optimizer):
            with contextlib.suppress(AttributeError):  # its __init__ raised
                found |= _of_optimizer(optimizer)
        self._mark(found)

    def _mark(self, found: dict[int, str]) -> None:
        if found:
            self.marks.append((self._count(), found))


def _alive(kind: type) -> list:
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def _of_optimizer(optimizer: Optimizer) -> dict[int, str]:
    found: dict[int, str] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found |= _of_parameter(parameter)
    for state in list(optimizer.state.values()):
        for tensor in _tensors(state):
            found |= {key: STATES for key in _of_tensor(tensor, STATES) if key not in found}
    return found


def _tensors(state: object, depth: int = 0) -> Iterable[torch.Tensor]:
    """The tensors in an optimizer's state, which may be nested."""
    if isinstance(state, torch.Tensor):
        yield state
    elif depth < 4:
        inner = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
        for one in inner:
            yield from _tensors(one, depth + 1)


def _of_parameter(parameter: torch.Tensor) -> dict[int, str]:
    found = _of_tensor(parameter, PARAMETERS)
    if parameter.is_leaf and parameter.grad is not None:
        found |= {key: GRADIENTS for key in _of_tensor(parameter.grad, GRADIENTS) if key not in found}
    return found


def _of_tensor(tensor: object, owner: str, depth: int = 0) -> dict[int, str]:
    """The addresses of a tensor's storage on the GPU; of a subclass that wraps others, those of its parts."""
    if not isinstance(tensor, torch.Tensor) or depth > 3:
        return {}
    if type(tensor) is not torch.Tensor and hasattr(tensor, "__tensor_flatten__"):
        found: dict[int, str] = {}
        with contextlib.suppress(Exception):
            for name in tensor.__tensor_flatten__()[0]:  # pyright: ignore[reportAttributeAccessIssue]
                found |= _of_tensor(getattr(tensor, name), owner, depth + 1)
        return found
    found = {}
    with contextlib.suppress(Exception):  # a tensor without storage
        if tensor.device.type == "cuda":
            found[tensor.untyped_storage().data_ptr()] = owner
    for name in ("quant_state", "CB", "SCB"):  # bitsandbytes keeps statistics of a weight as its attributes
        extra = getattr(tensor, name, None) if name in getattr(tensor, "__dict__", {}) else None
        for part in vars(extra).values() if name == "quant_state" and extra is not None else (extra,):
            found |= _of_tensor(part, owner, depth + 1)
    return found
