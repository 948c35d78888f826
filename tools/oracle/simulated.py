"""The simulated GPU as the worker uses it: its history also says which operator and autograd node was running."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import takewhile
from unittest.mock import patch

import torch

from simgpu import session
from simgpu.device import machine as machines
from simgpu.dispatch import dispatch_mode

DISPATCH_FILE = dispatch_mode.__file__
WRAPPERS = ("eval_frame.py", "_compile.py", "op_info/seen.py")  # around the modes; the user's line is further out


@contextmanager
def simulated_gpu(name: str, values: bool = False, nodes: bool = True, **place: int) -> Iterator[None]:
    """`simgpu.simulated_gpu(name)`, as `rank` of `ranks` if those are given, with stacks that `tools.oracle.labels`
    reads as it reads those of C++.

    `nodes`: they say which node of autograd was running. A node that Python has seen lets go of what it leads to in
    another order, which shows in the order of frees where leaves that nothing else holds, or graphs that were kept, go.
    """
    found = frames if nodes else partial(frames, nodes=False)
    with patch.object(session, "python_frames", found), session.simulated_gpu(name, values=values, **place):
        yield


def frames(limit: int = 64, nodes: bool = True) -> list[dict]:
    """The current stack, innermost first: the operator being simulated, the autograd node, then Python's frames."""
    stack = []
    operator = _operator()
    if operator is not None:
        overload = operator._schema.overload_name
        name = operator._schema.name.removeprefix("aten::") + (f"_{overload}" if overload else "")
        stack.append({"filename": "", "line": 0, "name": f"at::_ops::{name}::call("})
    python = [frame for frame in _PYTHON_FRAMES(limit) if not _around(frame["filename"])]
    if torch._C._current_graph_task_id() == -1:
        return stack + python
    # On CUDA the engine has a thread of its own: of Python there is only what a node runs, such as a recomputation.
    stack += takewhile(lambda frame: frame["name"] != "_engine_run_backward", python)
    if not nodes:
        return stack
    kept = torch._C._autograd._get_current_graph_task_keep_graph()  # pyright: ignore[reportAttributeAccessIssue]
    node = None if kept else torch._C._current_autograd_node()
    name = node.name() if node is not None else "Engine"
    return [*stack, {"filename": "", "line": 0, "name": f"torch::autograd::{name.split('::')[-1]}::apply("}]


@cache
def _around(filename: str) -> bool:
    return filename.endswith((__file__, *WRAPPERS))


_PYTHON_FRAMES = session.python_frames


def _operator():
    """The ATen operator whose memory is being taken, where the dispatch mode is running. The frame's own variables are
    not read: Python 3.11 would keep them with the frame, and an error the frame."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == DISPATCH_FILE:
            return machines.current().operator
        frame = frame.f_back
    return None
