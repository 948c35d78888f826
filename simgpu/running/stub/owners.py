"""Finds whose memory is whose: parameters, gradients and optimizer states, by the addresses of their tensors."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

import torch

from simgpu.report import owners
from simgpu.report.owners import PARAMETERS

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ATTRIBUTES = ("quant_state", "CB", "SCB")  # where bitsandbytes keeps statistics of a weight


class Owners(owners.Owners):
    """Notes owners before and after each step of an optimizer, and when it is asked to look.

    `marks`: of each look, how many allocations there had been, and the owner of each address. `windows`: of each
    backward pass and each step, its kind and how many allocations there had been at its begin and at its end. `count`
    returns how many there have been. `made`: how many there had been when `steps` grew; `stepped` is called then.
    `dtypes`: bytes of the parameters by dtype.
    """

    def __init__(self, count: Callable[[], int], stepped: Callable[[], None]):
        super().__init__()
        self.marks: list[tuple[int, dict[int, str]]] = []
        self.windows: list[tuple[str, int, int]] = []
        self.made: list[int] = []
        self.dtypes: Counter[str] = Counter()
        self._now = count
        self._began = self._passes = self._depth = 0
        self._found: dict[int, str] = {}
        self._parameters: set[int] = set()  # addresses that have been counted by dtype
        self._each_step = stepped
        self.begin(self._note, self._note_step)

    def _note_step(self, steps: int) -> None:
        self.made.append(self._now())
        self._each_step()

    def _before(self, optimizer, args, kwargs) -> None:
        if not torch.compiler.is_compiling():
            self._began = self._now()
            super()._before(optimizer, args, kwargs)

    def _after(self, optimizer, args, kwargs) -> None:
        if not torch.compiler.is_compiling():
            self.windows.append(("step", self._began, self._now()))
            super()._after(optimizer, args, kwargs)

    def backward(self, engine: Callable) -> Callable:
        """PyTorch's function that runs autograd's engine, with a window around it."""

        def run(*args, **kwargs):
            began = self._now()
            self._depth += 1
            try:
                return engine(*args, **kwargs)
            finally:
                self._depth -= 1
                self.windows.append(("backward", began, self._now()))
                if not self._depth and not self.steps:  # an optimizer's steps are enough
                    self._passes += 1
                    self.after_backward(self._passes)
                    self._mark_found()

        return run

    def look(self, leaves: bool = False) -> None:
        """Asks every module and every optimizer that is alive."""
        super().look(leaves)
        self._mark_found()

    def _of_optimizer(self, optimizer) -> None:
        super()._of_optimizer(optimizer)
        self._mark_found()

    def _mark_found(self) -> None:
        if self._found:
            self.marks.append((self._now(), self._found))
            self._found = {}

    def _note(self, tensor: torch.Tensor, owner: str, parameter: object = None) -> None:
        for address in _addresses(tensor):
            self._found.setdefault(address, owner)
            if owner is PARAMETERS and address not in self._parameters:
                self._parameters.add(address)
                self.dtypes[str(tensor.dtype).removeprefix("torch.")] += tensor.numel() * tensor.element_size()


def _addresses(tensor: object, depth: int = 0) -> list[int]:
    """The addresses of a tensor's storage on the GPU; of a subclass that wraps others, those of its parts."""
    if type(tensor) in _PLAIN and not tensor.__dict__:
        return _of_plain(tensor)
    if not isinstance(tensor, torch.Tensor) or depth > 3:
        return []
    if hasattr(tensor, "__tensor_flatten__") and type(tensor) is not torch.Tensor:
        found: list[int] = []
        with contextlib.suppress(Exception):
            for name in tensor.__tensor_flatten__()[0]:  # pyright: ignore[reportAttributeAccessIssue]
                found += _addresses(getattr(tensor, name), depth + 1)
        return found
    found = _of_plain(tensor)
    for name in _ATTRIBUTES:
        extra = getattr(tensor, name, None) if name in getattr(tensor, "__dict__", {}) else None
        for part in vars(extra).values() if name == "quant_state" and extra is not None else (extra,):
            found += _addresses(part, depth + 1)
    return found


def _of_plain(tensor) -> list[int]:
    try:
        return [tensor.untyped_storage().data_ptr()] if tensor.is_cuda else []
    except (RuntimeError, NotImplementedError):  # a tensor without storage
        return []
