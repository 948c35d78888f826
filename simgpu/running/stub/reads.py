"""Counts what a program reads from the device, by operator and by line: on the stub engine it reads zeros."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

from simgpu.report.places import LIBRARY, OWN, kind_of

SIZES = frozenset(
    (
        *("nonzero", "nonzero_static", "masked_select", "bincount", "histc", "repeat_interleave", "_coalesce"),
        *("_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
        *("segment_reduce", "_nested_from_padded", "nested_to_padded_tensor"),
    )
)
"""Operators that read a value to know the size of their result."""
SCALARS = frozenset(("_local_scalar_dense", "item", "is_nonzero"))
_DEEPEST = 200


class Reads:
    """`counts`: by (what, file, line) how often it was read. `sizes`: how often an operator read its result's size."""

    def __init__(self, arrays: Callable[[], None]):
        self._arrays = arrays  # called when the program reads more than a value
        self.counts: Counter[tuple[str, str, int]] = Counter()
        self.sizes = 0
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_char_p)(self._read)

    def begin(self, runtime: ctypes.CDLL) -> None:
        """From here on the stub of the CUDA runtime reports each read."""
        runtime.mock_on_read(self._callback)

    def _read(self, nbytes: int, operator: bytes) -> None:
        name = operator.decode()
        frame: FrameType | None = sys._getframe(1)
        library: tuple[str, int] | None = None
        own: tuple[str, int] | None = None
        for _ in range(_DEEPEST):
            if frame is None:
                break
            file = frame.f_code.co_filename
            kind = kind_of(file)
            if kind == OWN:
                own = (file, frame.f_lineno)
                break
            if kind == LIBRARY and library is None:
                library = (file, frame.f_lineno)
            frame = frame.f_back
        what = "a value" if name in SCALARS else f"the size of {name}" if name in SIZES else f"{nbytes:,} B"
        file, line = own or library or ("", 0)
        self.counts[what, file, line] += 1
        self.sizes += name in SIZES
        if what.endswith(" B"):
            self._arrays()
