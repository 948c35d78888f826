"""The exercises of the course's notebooks, and which of their lines are the reader's."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

ANSWER = re.compile(r"answer_\d+")
OWN = {"mine", "my_model", "seed", "chosen", "yours"}
"""Besides answers, what an exercise asks the reader to replace by something of their own."""


@dataclass(frozen=True)
class Statement:
    """A statement of a cell: its source, and what it is apart from spaces and comments."""

    source: str
    same: str
    binds: str | None
    """The name that it assigns to or defines, where that is one name."""
    stores: frozenset[str] = frozenset()
    """All names that it gives a value to, in a loop or a tuple, too."""


@dataclass(frozen=True)
class Exercise:
    """An exercise of a chapter: `first` to `last` are its cells, by their numbers in the course's notebook."""

    number: int
    task: str
    cells: tuple[int, ...]
    statements: tuple[Statement, ...]

    @cached_property
    def slots(self) -> dict[str, Statement]:
        """The statements that are the reader's to replace, by the name that they bind."""
        return {one.binds: one for one in self.statements if one.binds and _is_slot(one)}

    @cached_property
    def judge(self) -> list[Statement]:
        """All others: the course's."""
        return [one for one in self.statements if one not in self.slots.values()]


class Chapter:
    """A notebook of the course with its exercises."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notebook = nbformat.read(path, as_version=4)
        self.cells = self.notebook.cells

    @cached_property
    def exercises(self) -> list[Exercise]:
        groups: list[list[int]] = []
        before, going = "", False
        tasks = []
        for number, cell in enumerate(self.cells):
            tags = tags_of(cell)
            if cell.cell_type == "markdown":
                before = cell.source if not going else before
                going = going and "exercise" in tags
                continue
            if "exercise" not in tags:
                going = False
                continue
            if not going:
                groups.append([])
                tasks.append(_first_sentence(before))
            groups[-1].append(number)
            going = True
        return [
            Exercise(n, task, tuple(group), tuple(s for i in group for s in statements(self.cells[i].source)))
            for n, (task, group) in enumerate(zip(tasks, groups, strict=True), 1)
        ]


def statements(source: str) -> list[Statement]:
    """The statements of a cell's source. Raises SyntaxError."""
    source = TransformerManager().transform_cell(source)
    return [
        Statement(_text_of(source, node), ast.dump(node), _binds(node), _stores(node))
        for node in ast.parse(source).body
    ]


def tags_of(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def _text_of(source: str, node: ast.stmt) -> str:
    """The source of a statement, with its decorators."""
    decorators = getattr(node, "decorator_list", [])
    if not decorators:
        return ast.get_source_segment(source, node) or ""
    return "\n".join(source.splitlines()[min(one.lineno for one in decorators) - 1 : node.end_lineno])


def _stores(node: ast.stmt) -> frozenset[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return frozenset({node.name})
    return frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))


def _binds(node: ast.stmt) -> str | None:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None


def _is_slot(statement: Statement) -> bool:
    """Whether a statement of the course's is to be replaced: an answer, something of one's own, `return ...`."""
    assert statement.binds is not None
    if ANSWER.fullmatch(statement.binds) or statement.binds in OWN:
        return True
    node = ast.parse(statement.source).body[0]
    body = node.body if isinstance(node, ast.FunctionDef) else []
    last = body[-1] if body else None
    returned = last.value if isinstance(last, ast.Return) and len(body) == 1 else None
    return isinstance(returned, ast.Constant) and returned.value is Ellipsis


def _first_sentence(markdown: str) -> str:
    """The task in a few words, for a report: what the cell above the exercise begins with."""
    lines = [line for line in markdown.splitlines() if line.strip() and not line.startswith("#")]
    said = re.sub(r"\]\([^)]*\)", "]", " ".join(lines)).replace("[", "").replace("]", "").replace("*", "")
    found = re.match(r"(?:\d+\.\s*)?(.+?[.?:])(?:\s|$)", said)
    return (found[1] if found else said).strip()
