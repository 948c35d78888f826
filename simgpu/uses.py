"""Finds out what a program does with a number, as far as the source of the function that reads it shows.

Python makes an exact int in `int(x)` and `range(n)`, and from then on no object remembers its origin. So this module
finds the expression in the source (a frame knows the columns of its current instruction), and follows it outwards and
through local names, until its use is clear.
"""

import ast
import linecache
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType

SIZE, LOST, UNKNOWN = "decides a size", "is not known, by another number", "is not known"
BRANCH, HARMLESS = "decides a branch", "decides no size and no branch"
"""The use of a number. LOST means that `max` or `min` may have replaced it with a different number of unknown use."""

_GIVES_A_NUMBER = {"int", "float", "round", "max", "min", "abs", "sum", "ceil", "floor"}
_CHOOSES = {"max", "min"}
_SHOWS = {"print", "str", "repr", "format", "isinstance", "debug", "info", "warning", "error", "write", "log"}
_SHOWS |= {"add_scalar", "set_postfix", "set_description", "set_postfix_str", "add_row"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)


def of_result(frame: FrameType) -> str:
    """Returns SIZE, LOST, UNKNOWN, BRANCH or HARMLESS for the value that `frame` is computing now."""
    return _of_instruction(frame.f_code, frame.f_lasti)


def chooses(frame: FrameType) -> bool:
    """Returns whether `frame` is taking one element by an index, `blocks[i]`, which decides no size."""
    node, _ = _computed(frame.f_code, frame.f_lasti)
    return isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Slice, ast.Tuple))


@lru_cache(maxsize=4096)
def _of_instruction(code: CodeType, offset: int) -> str:
    node, source = _computed(code, offset)
    return UNKNOWN if node is None else _Followed(source).of(node)


def _computed(code: CodeType, offset: int) -> tuple:
    """Returns the expression that an instruction computes, and its source; None for each that is unknown."""
    positions = getattr(code, "co_positions", tuple)()  # from Python 3.11 on
    position = next(islice(positions, offset // 2, None), None)
    if position is None or None in position:
        return None, None
    source = _parsed(code.co_filename)
    return (None if source is None else source.at.get(position)), source


class _Source:
    """A parsed file: `at` maps each position to its outermost expression, and `above` each node to its parent."""

    def __init__(self, tree: ast.Module):
        self.above: dict[ast.AST, ast.AST] = {}
        self.at: dict[tuple, ast.AST] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.above[child] = node
            if isinstance(node, ast.expr):
                position = node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
                self.at.setdefault(position, node)

    def function(self, node: ast.AST) -> ast.AST:
        """Returns the function, or the module, that contains a node."""
        while not isinstance(node, _FUNCTIONS):
            node = self.above[node]
        return node


@lru_cache(maxsize=64)
def _parsed(file: str) -> _Source | None:
    try:
        return _Source(ast.parse("".join(linecache.getlines(file))))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _worst(found) -> str:
    """Returns the use that matters most among several uses of one number."""
    found = set(found)
    return next((one for one in (SIZE, LOST, UNKNOWN, BRANCH) if one in found), HARMLESS)


class _Followed:
    """Follows one number; `names` are the local names that it was assigned to."""

    def __init__(self, source: _Source | None):
        assert source is not None
        self.source = source
        self.names: set[str] = set()

    def of(self, node: ast.AST) -> str:
        """Returns the use of an expression's value."""
        above = self.source.above[node]
        match above:
            case ast.FormattedValue() | ast.Expr():
                return HARMLESS
            case ast.If() | ast.While() | ast.Assert() | ast.Compare() | ast.BoolOp():
                return BRANCH
            case ast.IfExp():
                return BRANCH if above.test is node else self.of(above)
            case ast.BinOp():
                return self._in_arithmetic(node, above)
            case ast.UnaryOp():
                return BRANCH if isinstance(above.op, ast.Not) else self.of(above)
            case ast.Slice():
                return HARMLESS if _is_written(self.source.above[above]) else SIZE
            case ast.Tuple() if _formats(self.source.above[above]):
                return HARMLESS
            case ast.Subscript():  # an index selects an element, and a slice is SIZE
                return HARMLESS
            case ast.Call():
                return self._in_call(node, above)
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign() | ast.NamedExpr():
                return self._assigned(above)
        return UNKNOWN

    def _in_arithmetic(self, node, above: ast.BinOp) -> str:
        other = above.right if above.left is node else above.left
        if isinstance(above.op, ast.Mult) and isinstance(other, (ast.List, ast.Tuple, ast.JoinedStr)):
            return SIZE  # [0] * n
        if _formats(above) and other is above.left:
            return HARMLESS
        found = self.of(above)
        # such as a mean or an accuracy
        return HARMLESS if isinstance(above.op, ast.Div) and found in (LOST, UNKNOWN) else found

    def _in_call(self, node, above: ast.Call) -> str:
        if above.func is node:
            return UNKNOWN
        name = getattr(above.func, "id", getattr(above.func, "attr", ""))
        if name == "range":
            return SIZE
        if name == "bool":
            return BRANCH
        if name in _SHOWS:
            return HARMLESS
        found = self.of(above) if name in _GIVES_A_NUMBER else UNKNOWN
        return LOST if found is UNKNOWN and name in _CHOOSES else found

    def _assigned(self, above) -> str:
        targets = above.targets if isinstance(above, ast.Assign) else [above.target]
        found = [self.of(above)] if isinstance(above, ast.NamedExpr) else []
        for target in targets:
            if not isinstance(target, ast.Name):
                found.append(UNKNOWN)
            elif target.id not in self.names:
                self.names.add(target.id)
                for one in ast.walk(self.source.function(target)):
                    if isinstance(one, ast.Name) and one.id == target.id and isinstance(one.ctx, ast.Load):
                        found.append(self.of(one))
        return _worst(found)


def _formats(node: ast.AST) -> bool:
    """Returns whether the node is of the form "%d" % n."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
        return False
    return isinstance(node.left, ast.JoinedStr) or isinstance(getattr(node.left, "value", None), str)


def _is_written(node: ast.AST) -> bool:
    """Returns whether the node is the target of an assignment: x[:n] = 0."""
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
