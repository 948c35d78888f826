"""Counts what a program reads from the device, by operator and by line: on the stub engine it reads zeros."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

from simgpu import uses
from simgpu.report.placeholder_values import HOLDS
from simgpu.report.places import LIBRARY, OWN, kind_of

SIZES = frozenset(
    (
        *("nonzero", "nonzero_static", "masked_select", "bincount", "histc", "repeat_interleave", "_coalesce"),
        *("_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
        *("segment_reduce", "_nested_from_padded", "nested_to_padded_tensor"),
    )
)
"""Operators that read a value to know the size of their result."""
SCALARS = frozenset(("_local_scalar_dense", "item"))
BRANCH = frozenset(("is_nonzero", "equal"))
"""Operators that give a truth value."""

A_VALUE = "a value"
SIZE_OF, BRANCH_OF, VALUE_OF = "size", "branch", "value"
"""What a read decides: the size of a tensor, which way the program continues, or nothing that its line shows."""

_DEEPEST = 200


class Reads:
    """`counts`: by (what, place, decides) how often it was read. A place is the innermost line outside PyTorch, and,
    if that is a library's, the user's own that it comes from. `known()`: whether what is read now is known."""

    def __init__(self, arrays: Callable[[], None], known: Callable[[], bool]):
        self._arrays, self._known = arrays, known  # `arrays` is called when the program reads more than a value
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_char_p)(self._read)

    def begin(self, runtime: ctypes.CDLL) -> None:
        """From here on the stub of the CUDA runtime reports each read."""
        runtime.mock_on_read(self._callback)

    def _read(self, nbytes: int, operator: bytes) -> None:
        name = operator.decode()
        inner, own = _frames(sys._getframe(1))
        what = f"the size of {name}" if name in SIZES else "a truth value" if name in BRANCH else A_VALUE
        what = what if name in SIZES | BRANCH | SCALARS else f"{nbytes:,} B"
        if what.endswith(" B"):
            self._arrays()
        if not self._known():
            self.counts[what, _place(inner, own), _decides(name, inner)] += 1

    def taken_to_hold(self) -> None:
        """Counts a comparison of values that are not known, which is taken to hold."""
        self.counts[HOLDS, _place(*_frames(sys._getframe(1))), BRANCH_OF] += 1


def _decides(name: str, frame: FrameType | None) -> str:
    if name in SIZES:
        return SIZE_OF
    if name in BRANCH:
        return BRANCH_OF
    use = uses.of_result(frame) if name in SCALARS and frame is not None else uses.UNKNOWN
    return {uses.SIZE: SIZE_OF, uses.BRANCH: BRANCH_OF}.get(use, VALUE_OF)


def _frames(frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
    """The innermost frame outside PyTorch, and the innermost one of the user's own."""
    inner = None
    for _ in range(_DEEPEST):
        if frame is None:
            break
        kind = kind_of(frame.f_code.co_filename)
        if kind in (OWN, LIBRARY) and inner is None:
            inner = frame
        if kind == OWN:
            return inner, frame
        frame = frame.f_back
    return inner, None


def _place(inner: FrameType | None, own: FrameType | None) -> str:
    found = dict.fromkeys(f"{one.f_code.co_filename}:{one.f_lineno}" for one in (inner, own) if one is not None)
    return ", from ".join(found)
