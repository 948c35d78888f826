"""A reader's copy of a chapter: where its exercises are, which lines are the reader's, and what was changed."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbformat

from tools.grading.chapter import Chapter, Exercise, Statement, statements, tags_of


class CannotBeGraded(ValueError):
    """Why a file cannot be graded, for whoever gave it."""


@dataclass(frozen=True)
class Attempt:
    """An exercise as a copy has it: the numbers of its cells there, none if they are gone."""

    exercise: Exercise
    cells: tuple[int, ...]
    found: tuple[Statement, ...]
    unreadable: str = ""
    """The error, if a cell is not Python."""

    @property
    def there(self) -> bool:
        return bool(self.cells)

    @cached_property
    def touched(self) -> bool:
        """Whether the reader has written anything."""
        return bool(self.unreadable) or [one.same for one in self.found] != [
            one.same for one in self.exercise.statements
        ]

    @cached_property
    def changed(self) -> list[str]:
        """The course's lines that are not in the copy, or not in their place: the first line of each."""
        if self.unreadable or not self.there:
            return []
        kept = self._in_common(self.exercise.judge)
        return [one.source.splitlines()[0] for one in self.exercise.judge if one not in kept]

    @cached_property
    def untouched_slots(self) -> set[str]:
        """The names that the copy binds exactly as the course does."""
        bound = {name: {one.same for one in self.found if name in one.stores} for name in self.exercise.slots}
        return {name for name, statement in self.exercise.slots.items() if bound[name] == {statement.same}}

    def merged(self) -> list[tuple[str, bool]]:
        """The course's statements with the reader's at their places: (source, whether it is the reader's)."""
        wanted, found = list(self.exercise.statements), list(self.found)
        bound = frozenset[str]().union(*(one.stores for one in found))
        parts: list[tuple[str, bool]] = []
        matcher = difflib.SequenceMatcher(None, [one.same for one in wanted], [one.same for one in found], False)
        for what, first, last, start, end in matcher.get_opcodes():
            if what == "equal":
                parts += [(one.source, False) for one in wanted[first:last]]
                continue
            parts += [(one.source, True) for one in found[start:end]]
            left = [one for one in wanted[first:last] if one.binds not in self.exercise.slots or one.binds not in bound]
            parts += [(one.source, False) for one in left]
        return parts

    def _in_common(self, wanted: list[Statement]) -> list[Statement]:
        matcher = difflib.SequenceMatcher(None, [one.same for one in wanted], [one.same for one in self.found], False)
        return [one for block in matcher.get_matching_blocks() for one in wanted[block.a : block.a + block.size]]


class Submission:
    """A reader's notebook beside the chapter that it is a copy of. Raises CannotBeGraded if it is none."""

    def __init__(self, path: Path, course: Path) -> None:
        self.path = path
        self.cells = _read(path).cells
        self.chapter = _chapter_of(path, self.cells, course)
        self.origin = _origins(self.cells, self.chapter)
        if not any(attempt.there for attempt in self.attempts):
            raise CannotBeGraded(
                f"{path}: none of the {len(self.chapter.exercises)} exercises of {self.chapter.path.stem} is in it; "
                "was it cleared of them? The course's own has them: python course.py open"
            )

    @cached_property
    def attempts(self) -> list[Attempt]:
        return [self._attempt(exercise) for exercise in self.chapter.exercises]

    def _attempt(self, exercise: Exercise) -> Attempt:
        own = [number for number, origin in self.origin.items() if origin in exercise.cells]
        if not own:
            return Attempt(exercise, (), ())
        # Cells that the reader put among the exercise's cells, or directly behind them, are part of it.
        last = own[-1]
        while last + 1 < len(self.cells) and self._is_readers(last + 1):
            last += 1
        cells = [n for n in range(own[0], last + 1) if self.cells[n].cell_type == "code"]
        cells = [n for n in cells if n in own or self._is_readers(n)]
        try:
            found = tuple(one for n in cells for one in statements(self.cells[n].source))
        except (SyntaxError, ValueError) as error:
            return Attempt(exercise, tuple(cells), (), f"{type(error).__name__}: {error}".splitlines()[0])
        return Attempt(exercise, tuple(cells), found)

    def _is_readers(self, number: int) -> bool:
        return self.cells[number].cell_type == "code" and number not in self.origin

    def is_solution(self, number: int) -> bool:
        """Whether a cell is one of the course's solutions, which are not run: the answers are to be the reader's."""
        origin = self.origin.get(number)
        return origin is not None and "solution" in tags_of(self.chapter.cells[origin])


def _read(path: Path):
    """The notebook of a file, in the newest format. Raises CannotBeGraded."""
    if path.is_dir():
        raise CannotBeGraded(f"{path} is a folder: give one notebook (.ipynb)")
    if not path.is_file():
        raise CannotBeGraded(f"no such notebook: {path}")
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
    except (ValueError, OSError) as error:
        raise CannotBeGraded(f"{path} is not a notebook: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("cells"), list):
        raise CannotBeGraded(f"{path} is not a notebook: it has no list of cells")
    try:
        return nbformat.reads(text, as_version=4)
    except Exception as error:  # nbformat raises what it meets
        raise CannotBeGraded(f"{path} is not a notebook that nbformat can read: {error!r}") from None


def _chapter_of(path: Path, cells, course: Path) -> Chapter:
    """The chapter of which most cells are in the copy, whatever the file is called."""
    sources = sorted(course.glob("*.ipynb"))
    same_name = [source for source in sources if source.stem == path.stem]
    ids = {identity(cell) for cell in cells} - {None}
    texts = {cell.source.strip() for cell in cells}
    best, most = None, 0
    for source in same_name or sources:
        chapter = Chapter(source)
        common = sum(identity(cell) in ids or cell.source.strip() in texts for cell in chapter.cells)
        if common > most:
            best, most = chapter, common
    if best is None:
        raise CannotBeGraded(f"{path} has no exercises of the course: not one cell is of a chapter in {course.name}/")
    if not best.exercises:
        raise CannotBeGraded(f"{path} has no exercises: the course's {best.path.name} has none")
    return best


def identity(cell) -> str | None:
    """A cell's id; Colab writes it into the metadata."""
    return cell.get("id") or cell.metadata.get("id")


def _origins(cells, chapter: Chapter) -> dict[int, int]:
    """For each cell of the copy that is one of the chapter's, its number there: by id, else by its statements."""
    numbers = {identity(cell): n for n, cell in enumerate(chapter.cells)}
    origin, taken = {}, set()
    for n, cell in enumerate(cells):
        number = numbers.get(identity(cell))
        if number is not None and number not in taken and chapter.cells[number].cell_type == cell.cell_type:
            origin[n] = number
            taken.add(number)
    for n, cell in enumerate(cells):
        if n not in origin and (number := _most_alike(cell, chapter, taken)) is not None:
            origin[n] = number
            taken.add(number)
    return origin


def _most_alike(cell, chapter: Chapter, taken: set[int]) -> int | None:
    """The number of the chapter's cell that has the same text, or at least half of the same statements."""
    candidates = [n for n, one in enumerate(chapter.cells) if n not in taken and one.cell_type == cell.cell_type]
    for number in candidates:
        if chapter.cells[number].source.strip() == cell.source.strip():
            return number
    own = _kinds(cell)
    if not own:
        return None
    share = {n: len(own & there) / len(there) for n in candidates if (there := _kinds(chapter.cells[n]))}
    best = max(share, key=lambda n: share[n], default=None)
    return best if best is not None and share[best] >= 0.5 else None


def _kinds(cell) -> set[str]:
    if cell.cell_type != "code":
        return set()
    try:
        return {one.same for one in statements(cell.source)}
    except (SyntaxError, ValueError):
        return set()
