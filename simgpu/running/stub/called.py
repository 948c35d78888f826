"""The call that a line of a stack makes: "linear" of `return F.linear(input, self.weight, self.bias)`.

PyTorch's memory history names the file, line and function of each Python frame, and no operator. So the operator's name
is looked for in the statement of the innermost line that does more than hand a call on.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_HERE = str(Path(__file__).parents[2])
_PLUMBING = (
    *("torch/_ops.py", "torch/_native/registry.py", "torch/library.py", "torch/_library/custom_ops.py"),
    *("torch/utils/_device.py", "torch/overrides.py", "torch/utils/_contextlib.py", "torch/_tensor.py"),
    *("torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/autograd/function.py", "torch/nn/modules/module.py"),
)
"""Files of PyTorch that hand calls on."""

_SAYS = {"_convert", "convert", "_apply"}
"""Functions of these files that make calls of their own: `Module.to`."""

_ROOTS = ("torch", "F", "aten", "prims")
_QUESTIONS = frozenset(
    ("is_floating_point", "is_complex", "size", "dim", "numel", "len", "int", "getattr", "isinstance")
)
"""Functions that allocate nothing."""
_LONGEST = 60  # characters of a line


def is_plumbing(file: str, function: str) -> bool:
    """Returns whether a frame only forwards a call."""
    if file.startswith(_HERE):
        return True
    return file.endswith(_PLUMBING) and function.removeprefix("<locals>.") not in _SAYS and function != "<lambda>"


@lru_cache(maxsize=4096)
def at(file: str, line: int, function: str) -> str:
    """The call of a line, or its code where that has no call or more than one that it may be."""
    node = _statement(file, line, function)
    if node is not None and (name := _called(node)):
        return name
    code = linecache.getline(file, line).strip()
    return code if len(code) <= _LONGEST else code[: _LONGEST - 3] + "…" if code else function


def _called(node: ast.AST) -> str:
    """The name of the one call in a statement, or of the one of PyTorch's; "" where there is not one. A statement that
    changes a tensor in place, as `x.resize_(n * x.itemsize)` does, is that call."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        name = _dotted(node.value.func).rpartition(".")[2]
        if name.endswith("_") and not name.endswith("__"):
            return name
    calls = [one for one in _own_nodes(node) if isinstance(one, ast.Call)]
    operators = [one for one in _own_nodes(node) if isinstance(one, (ast.BinOp, ast.Compare, ast.UnaryOp))]
    named = [one for call in calls if (one := _dotted(call.func)).rpartition(".")[2] not in _QUESTIONS]
    of_torch = [one for one in named if one.split(".")[0] in _ROOTS]
    chosen = of_torch if len(of_torch) == 1 else named if len(named) == 1 and not operators else []
    return chosen[0].rpartition(".")[2] if chosen else ""


def _dotted(node: ast.AST) -> str:
    """ "torch.zeros" of a function; "zeros" of that attribute of anything else."""
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, without the bodies of functions and of compound statements."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("body", "orelse", "finalbody", "handlers") and isinstance(node, ast.stmt):
            continue
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST) and not isinstance(child, ast.Lambda):
                yield from _own_nodes(child)


def _statement(file: str, line: int, function: str) -> ast.AST | None:
    """The innermost statement around a line, or the body of its lambda."""
    found: ast.AST | None = None
    for node in _statements(file):
        if node.lineno <= line <= (node.end_lineno or node.lineno) and (found is None or _within(node, found)):
            found = node
    if found is not None and function == "<lambda>":
        return next((one.body for one in ast.walk(found) if isinstance(one, ast.Lambda)), found)
    return found


def _within(node: ast.stmt, other: ast.AST) -> bool:
    return isinstance(other, ast.stmt) and (node.lineno, -(node.end_lineno or 0)) >= (
        other.lineno,
        -(other.end_lineno or 0),
    )


@lru_cache(maxsize=64)
def _statements(file: str) -> list[ast.stmt]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [one for one in ast.walk(tree) if isinstance(one, ast.stmt)]
