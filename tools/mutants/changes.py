"""Small changes of a Python file: each place of it where one can be made, and the text with that change."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
BOOLEAN = {ast.And: ast.Or, ast.Or: ast.And}


@dataclass(frozen=True)
class Change:
    """A change of one file: bytes `start` to `end` of its UTF-8 text become `new`.

    `line` is where it begins, `statement` the first and the last line of the statement (of its head, if it has a body).
    """

    file: str
    line: int
    statement: tuple[int, int]
    start: int
    end: int
    old: str
    new: str

    def of(self, text: str) -> str:
        """The file's text with this change."""
        content = text.encode()
        return (content[: self.start] + self.new.encode() + content[self.end :]).decode()

    def __str__(self):
        old, new = (" ".join(part.split()) for part in (self.old, self.new))
        return f"{self.file}:{self.line}: {old} -> {new}"


def of_file(file: str, text: str) -> list[Change]:
    """Every change of a file, in the order of its text."""
    content = text.encode()
    lines = [0]
    for line in content.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def change(statement: tuple[int, int], node, new: str) -> Change:
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[node.end_lineno - 1] + node.end_col_offset
        return Change(file, node.lineno, statement, start, end, content[start:end].decode(), new)

    found = [
        change(statement, *one)
        for statement, node in _of_program(ast.parse(text))
        for one in (*_of_condition(node), *_others(node))
    ]
    return sorted(found, key=lambda one: (one.start, one.end))


def found_again(change: Change, text: str) -> Change:
    """The same change where the file has changed since, the nearest of those that read alike. ValueError if none."""
    alike = [one for one in of_file(change.file, text) if (one.old, one.new) == (change.old, change.new)]
    if not alike:
        raise ValueError(f"{change}: {change.file} has no such place any more")
    return min(alike, key=lambda one: abs(one.line - change.line))


def _of_program(node: ast.AST, statement: tuple[int, int] = (0, 0)) -> Iterator[tuple[tuple[int, int], ast.AST]]:
    """The nodes that run, each with the lines of its statement; without annotations and formatted texts (messages)."""
    if isinstance(node, ast.stmt):
        body = getattr(node, "body", None)
        statement = (node.lineno, (body[0].lineno - 1 if body else node.end_lineno) or node.lineno)
    yield statement, node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _of_program(child, statement)


def _of_condition(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The opposite of a condition that is nothing that changes by itself: `if ready:`."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)) and isinstance(node.test, (ast.Name, ast.Attribute, ast.Call)):
        yield node.test, _text(ast.UnaryOp(ast.Not(), node.test))


def _others(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """A node and what may stand in its place."""
    return ((node, new) for new in _texts(node))


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare):
        for at, one in enumerate(node.ops):
            ops = [*node.ops[:at], COMPARISONS[type(one)](), *node.ops[at + 1 :]]
            yield _text(ast.Compare(node.left, ops, node.comparators))
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _of_text(node):
        yield _text(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))
    elif isinstance(node, ast.BoolOp):
        yield _text(ast.BoolOp(BOOLEAN[type(node.op)](), node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield _text(node.operand)
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "return None"
    elif (
        isinstance(node, (ast.AugAssign, ast.Raise, ast.Break, ast.Continue, ast.Delete))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or (isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript)))
    ):
        yield "pass"


def _other_constants(value) -> Iterator[str]:
    if isinstance(value, bool):
        yield repr(not value)
    elif isinstance(value, int):
        yield repr(value + 1)
    elif isinstance(value, float):
        yield repr(value * 2 + 1)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _of_text(node: ast.BinOp) -> bool:
    """Whether it joins or formats texts."""
    sides = (node.left, node.right)
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, (str, bytes)))
        for side in sides
    )


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"
