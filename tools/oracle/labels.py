"""Where an event came from, told in one line from its stack: "operator|function|autograd node|user's line".

The stacks are those of `torch.cuda.memory._record_memory_history(stacks="all")`, innermost frame first, C++
and Python. Reading them disturbs nothing, whereas a dispatch mode would make autograd choose other operators.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

OPERATOR = re.compile(r"^at::_ops::(\w+)::(?:call|redispatch)\b")
NODE = re.compile(r"^torch::autograd::(?:generated::)?(\w+)::apply(?:_with_saved)?\(")
ENGINE = re.compile(r"^torch::autograd::(Engine|InputBuffer)::(\w+)\(")
FUNCTION = re.compile(r"\b(?:at::native|at::cuda|at::meta|torch::autograd)::")
# Operators and functions that only make a tensor: which one asked for it says more.
ONLY_MAKES = re.compile(
    r"^(?:empty|new_empty|zeros|new_zeros|resize|resolve)|_like$|^(?:clone|contiguous|to|_to_copy)$"
)
ONLY_ALLOCATES = re.compile(
    r"(?:^|::)(?:empty\w*|create_out|resize_\w*|set_output\w*|wrapper_\w+|wrap_kernel\w*|call|redispatch|SavedVariable|reset_data|thread_init|thread_main)$"
)
ANONYMOUS = "(anonymous namespace)::"


def where(frames: Sequence[Mapping]) -> str:
    """One line for a stack of `{"filename", "line", "name"}` frames, innermost first; four parts between "|".

    The operator is the outermost and, if it is another one, the innermost ATen operator ("linear/addmm"). The
    function is the innermost one of ATen or autograd that does more than allocate. The node is autograd's, if
    one was running, or the engine's step between nodes. The user's line is the innermost Python frame,
    "file.py:12 function".
    """
    operators, function, node, line = [], "", "", ""
    for frame in frames:
        kind, value = _read(frame["name"], str(frame["filename"]).endswith(".py"))
        if kind == "operator" and not node:
            operators.append(value)
        elif kind == "function":
            function = function or value
        elif kind == "node":
            node = node or value
        elif kind == "python" and not line:
            line = f"{frame['filename'].replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame['line']} {value}"
            break
    inner = next((name for name in operators if not ONLY_MAKES.search(name)), operators[0] if operators else "")
    outer = operators[-1] if operators else ""
    return "|".join([outer if outer == inner else f"{outer}/{inner}", function, node, line])


@cache
def _read(name: str, is_python: bool) -> tuple[str, str]:
    """What one frame is: "operator", "node", "function", "python" or "", and its name."""
    if is_python:
        return "python", name
    if found := OPERATOR.match(name):
        return "operator", found[1]
    if found := NODE.match(name):
        return "node", found[1]
    if found := ENGINE.match(name):
        return "node", f"{found[1]}.{found[2]}"
    if FUNCTION.search(name.split("(anonymous")[0][:200]):
        short = _plain(name)
        if short and not ONLY_ALLOCATES.search(short):
            return "function", short
    return "", ""


def _plain(name: str) -> str:
    """A C++ function's name without return type, template arguments and parameters, its last two parts."""
    depth, plain = 0, []
    for character in name.replace(ANONYMOUS, "").replace("operator()", "operator_call").replace("->", ""):
        if character == "(" and depth == 0:
            break
        depth += (character == "<") - (character == ">")
        if depth == 0 and character != ">":
            plain.append(character)
    words = "".join(plain).split()
    return "::".join(words[-1].split("::")[-2:]) if words else ""
