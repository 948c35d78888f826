"""Finds out whether the shapes of a call's results depend on a placeholder value.

The call is repeated twice on detached meta tensors, with the number as it is and with one more. If the shapes differ,
or only one of the two calls succeeds, the number decides a size. PyTorch itself gives the answer for every function:
`x[:n]` and `zeros(n)` differ, `x[n]` and `x * n` do not.
"""

import sys
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes

from simgpu import placeholder_numbers as numbers
from simgpu.placeholder_values import PlaceholderLine
from simgpu.storage import storage_map, values

_FAILED = "failed"


def lines_in(args, kwargs) -> tuple[PlaceholderLine, ...]:
    """Returns the lines whose placeholder values a call's arguments depend on."""
    found: dict[PlaceholderLine, None] = {}
    _collect(args, found)
    if kwargs:
        _collect(kwargs.values(), found)
    return tuple(found)


def _collect(arguments, found: dict) -> None:
    for one in arguments:
        kind = type(one)
        if kind is numbers.Int or kind is numbers.Float:
            found.update(dict.fromkeys(one.of))
        elif kind is slice:
            _collect((one.start, one.stop, one.step), found)
        elif kind is tuple or kind is list or kind is torch.Size:
            _collect(one, found)


def look(function, args, kwargs) -> None:
    """Records for each line that a call's arguments depend on whether it decides a size there."""
    for line in lines_in(args, kwargs):
        if not (line.sizes and not line.at_least):
            _note(line, function, args, kwargs, line)


def look_inside(line: PlaceholderLine, mode: TorchFunctionMode | None) -> None:
    """Does the same as `look` for an integer that PyTorch's C++ reads inside a call: a one-element tensor argument.

    Any other integer that C++ reads decides a size, as when one_hot reads the largest element. `mode` is the function
    mode that handles the call, in a frame that has its arguments.
    """
    answers = getattr(type(mode), "__torch_function__", None)
    code, frame = getattr(answers, "__code__", None), sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        line.decides_size()
        return
    function, args, kwargs = (frame.f_locals[name] for name in ("function", "args", "kwargs"))
    _note(line, function, args, kwargs, None)


def _note(line: PlaceholderLine, function, args, kwargs, of: PlaceholderLine | None) -> None:
    """Makes the two calls and records what `line` decides. `of` is that of `_Given`."""
    before, after = (_shapes(function, args, kwargs, _Given(of, more)) for more in (0, 1))
    if before is None or after is None:
        return
    if before != after:
        grows = _FAILED in (before, after) or _elements(after) >= _elements(before)
        line.decides_size(at_least=grows)
    elif before == _FAILED:
        line.decides_size()


def _elements(shapes) -> int:
    return sum(shape.numel() for shape in shapes)


class _Given:
    """Converts arguments for a probe: adds `more` to the numbers of `line`.

    If `line` is None, it replaces one-element tensors without values.
    """

    def __init__(self, line: PlaceholderLine | None, more: int):
        self.line, self.more = line, more

    def __call__(self, one) -> Any:
        kind = type(one)
        if kind is numbers.Int or kind is numbers.Float:
            return numbers.plain(one) + (self.more if self.line in one.of else 0)
        if kind is slice:
            return slice(self(one.start), self(one.stop), self(one.step))
        if kind is tuple or kind is list:
            return kind(map(self, one))
        if isinstance(one, torch.Tensor):
            return self._tensor(one)
        return torch.device("meta") if kind is torch.device else one

    def _tensor(self, one):
        whole = one.numel() == 1 and not one.dtype.is_floating_point and not one.dtype.is_complex
        if self.line is None and whole and storage_map.of(one) is not None and values.of(one) is None:
            return torch.full(one.shape, self.more, dtype=one.dtype, device="cpu")
        return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")


def _shapes(function, args, kwargs, given: _Given):
    """Returns the shapes of a call's results, _FAILED if it raises, or None if an index is out of range."""
    kwargs = {name: one for name, one in (kwargs or {}).items() if name not in ("generator", "pin_memory")}
    if "device" in kwargs or function in _device_constructors():
        kwargs["device"] = "meta"
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        try:
            result = function(*given(tuple(args)), **{name: given(one) for name, one in kwargs.items()})
        except IndexError:  # x[n] with n one too large
            return None
        except Exception:
            return _FAILED
        return tuple(one.shape for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor))
