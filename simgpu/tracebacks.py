"""Makes tracebacks hold the same tensors as on a GPU.

An error keeps the frames that it passed through, and these keep their tensors. So what stays allocated in an `except`
is what the frames of PyTorch's Python and of the user hold. The frames of the simulated GPU take the place of C++,
which holds nothing after an error.
"""

import contextlib
import os
import types
from collections.abc import Iterator
from pathlib import Path

import torch

_ROOM = Path(__file__).parent
OURS = (
    *(f"{folder}{os.sep}" for folder in _ROOM.iterdir() if folder.is_dir() and folder.name != "recording"),
    *(str(file) for file in _ROOM.glob("*.py") if file.name != "record.py"),
)
"""The simulated GPU's own files. The recorder's are excluded, because its workloads count as user code."""
_TORCH = Path(torch.__file__).parent
_AROUND_MODES = tuple(str(_TORCH / file) for file in ("_compile.py", "_dynamo/eval_frame.py"))
PATHS = (
    *OURS,
    torch.overrides.__file__,  # handle_torch_function, which calls the function mode
    *_AROUND_MODES,
)
_IN_PLACE_OF_CPP = (
    *OURS,
    torch.overrides.__file__,
    *(str(_TORCH / room) for room in ("_meta_registrations.py", "_refs", "_prims", "_decomp")),
)
"""Files that run in place of C++ while an operator runs: simgpu's, and PyTorch's Python kernels for meta tensors."""
_CALLED_BY_THEM = tuple(str(_TORCH / file) for file in ("_ops.py", "__init__.py")) + _AROUND_MODES


def let_go(error: BaseException) -> None:
    """Clears ended frames that take the place of C++, innermost first, because C++ holds nothing after an error.

    The frames stay in the traceback, so that it still shows what raised the error.
    """
    for one in _behind(error):
        for frame in reversed(list(_in_place_of_cpp(one.__traceback__))):
            with contextlib.suppress(RuntimeError):  # the frame has not ended
                frame.clear()


def _in_place_of_cpp(traceback: types.TracebackType | None) -> Iterator[types.FrameType]:
    inside = False
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        inside = file.startswith(_IN_PLACE_OF_CPP) or (inside and file.startswith(_CALLED_BY_THEM))
        if inside:
            yield traceback.tb_frame
        traceback = traceback.tb_next


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, and the errors that caused it."""
    seen, left = set(), [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [one.__cause__, one.__context__]


def as_on_gpu(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Returns a traceback without the frames that a GPU would not have."""
    entries, kept = [], None
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(PATHS):
            entries.append(traceback)
        traceback = traceback.tb_next
    for entry in reversed(entries):
        kept = types.TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept
