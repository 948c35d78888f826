"""Tracebacks as they are on a GPU.

An error keeps the frames that it went through, and these their tensors: what stays allocated in an `except` is what
PyTorch's Python and the user's hold there. The frames of the simulated GPU stand for C++, which holds nothing after an
error.
"""

import os
import types
from pathlib import Path

import torch

_ROOM = Path(__file__).parent
OURS = (
    *(f"{folder}{os.sep}" for folder in _ROOM.iterdir() if folder.is_dir() and folder.name != "recording"),
    *(str(file) for file in _ROOM.glob("*.py") if file.name != "record.py"),
)
"""The simulated GPU's own files; the recorder's are not among them: its workloads are a user's code."""
PATHS = (
    *OURS,
    torch.overrides.__file__,  # handle_torch_function, by which a function comes to the function mode
    *(str(Path(torch.__file__).parent / path) for path in ("_compile.py", "_dynamo/eval_frame.py")),  # around modes
)


def as_on_gpu(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames that a GPU would not have had."""
    entries, kept = [], None
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(PATHS):
            entries.append(traceback)
        traceback = traceback.tb_next
    for entry in reversed(entries):
        kept = types.TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept
