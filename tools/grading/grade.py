"""Grades a copy of a chapter: the copy's run gives the answers, the chapter's own run judges them."""

from __future__ import annotations

import ast
import json
import re
import secrets
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from tools.grading import literal
from tools.grading.chapter import tags_of
from tools.grading.process import Process
from tools.grading.submission import Attempt, Submission

PARTS = re.compile(r"(\d+) of (\d+) are right\b")
UNANSWERED = "no answer yet"
PLAIN_ONLY = "an answer is a number, a text, True, False, or a list, set or dictionary of these; this is"


@dataclass(frozen=True)
class Result:
    """What an exercise is worth. `points` are of 1; an answer in parts gets the share that is right."""

    number: int
    task: str
    points: Fraction
    answered: bool
    verdict: str
    error: str = ""
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answers:
    """What the copy's run says of an exercise: [kind, text] for each name that is the reader's, or the error."""

    values: dict[str, list[str]]
    error: str = ""


def grade(submission: Submission, gpu: str, root: Path, seconds: int) -> list[Result]:
    """The results of all exercises of the chapter, in their order. `seconds` is what a cell may take."""
    folder = submission.chapter.path.parent
    answers: dict[int, Answers] = {}
    if any(attempt.touched for attempt in submission.attempts):
        with Process(gpu, folder, root, seconds) as process:
            answers = _answers(submission, process)
    to_judge = [a for a in submission.attempts if a.there and a.touched and not answers[a.exercise.number].error]
    judged: dict[int, Result] = {}
    if to_judge:
        with Process(gpu, folder, root, seconds) as process:
            judged = _judged(submission, process, {a.exercise.number for a in to_judge}, answers)
    return [_result(attempt, answers, judged) for attempt in submission.attempts]


def _result(attempt: Attempt, answers: dict[int, Answers], judged: dict[int, Result]) -> Result:
    number, task = attempt.exercise.number, attempt.exercise.task
    if not attempt.there:
        return Result(number, task, Fraction(0), False, "the exercise is not in the notebook")
    if not attempt.touched:
        return Result(number, task, Fraction(0), False, UNANSWERED)
    if number in judged:
        return judged[number]
    error = answers[number].error
    return Result(number, task, Fraction(0), True, "the cell raises an error", error, tuple(attempt.changed))


def _answers(submission: Submission, process: Process) -> dict[int, Answers]:
    """Run the copy, but no solution, and read the answers behind each exercise."""
    last = {attempt.cells[-1]: attempt for attempt in submission.attempts if attempt.there}
    of_cell = {cell: attempt for attempt in submission.attempts for cell in attempt.cells}
    errors: dict[int, str] = {}
    found: dict[int, Answers] = {}
    for number, cell in enumerate(submission.cells):
        if cell.cell_type != "code" or submission.is_solution(number):
            continue
        error = process.run(cell.source)[1]
        if number in of_cell and error:
            errors.setdefault(of_cell[number].exercise.number, error)
        if number in last:
            exercise = last[number].exercise
            values = _read(process, list(exercise.slots))
            error = errors.get(exercise.number) or last[number].unreadable
            found[exercise.number] = Answers(values, error or ("" if values else "the answers could not be read"))
    return found


def _read(process: Process, names: list[str]) -> dict[str, list[str]]:
    """What the names stand for in the copy's process, [kind, text] each; nothing if that cannot be told."""
    mark = secrets.token_hex(8)
    ask = f"__import__('tools.grading.literal', fromlist=['told']).told(globals(), {names!r})"
    printed = process.run(f"__import__('sys').stdout.write('\\n{mark}' + {ask} + '\\n') and None")[0]
    lines = [line.removeprefix(mark) for line in printed.splitlines() if line.startswith(mark)]
    try:
        told = json.loads(lines[-1])
        return {name: [str(part) for part in told[name]] for name in names}
    except (IndexError, ValueError, KeyError, TypeError):
        return {}


def _judged(
    submission: Submission, process: Process, numbers: set[int], answers: dict[int, Answers]
) -> dict[int, Result]:
    """Run the course's chapter with the answers in their places, as far as the last exercise that has any."""
    attempts = {a.exercise.cells[0]: a for a in submission.attempts}
    among = {cell for a in submission.attempts for cell in a.exercise.cells}
    final = max(a.exercise.cells[-1] for a in submission.attempts if a.exercise.number in numbers)
    results: dict[int, Result] = {}
    process.run("from tools.grading import recording as _recording; _recording.begin()")
    for number, cell in enumerate(submission.chapter.cells[: final + 1]):
        attempt = attempts.get(number)
        if attempt is not None and attempt.exercise.number in numbers:
            results[attempt.exercise.number] = _one(process, attempt, answers[attempt.exercise.number])
        elif attempt is not None:
            for one in attempt.exercise.cells:
                process.run(submission.chapter.cells[one].source)
        elif cell.cell_type == "code" and number not in among and "solution" not in tags_of(cell):
            process.run(cell.source)
    return results


def _one(process: Process, attempt: Attempt, answers: Answers) -> Result:
    """Judge one exercise."""
    exercise, changed = attempt.exercise, tuple(attempt.changed)
    wanted = {name: value for name, value in answers.values.items() if name not in attempt.untouched_slots}
    for name, (kind, said) in wanted.items():
        if kind == literal.MISSING:
            return Result(exercise.number, exercise.task, Fraction(0), False, f"{name} is not there", "", changed)
        if kind == literal.OTHER and name.startswith("answer_"):
            return Result(exercise.number, exercise.task, Fraction(0), True, f"{PLAIN_ONLY} a {said}", "", changed)
        if kind == literal.PLAIN and not literal.is_literal(said):
            return Result(
                exercise.number, exercise.task, Fraction(0), True, f"{PLAIN_ONLY} something else", "", changed
            )
    process.run("_recording.last()")
    error = _run_with(process, attempt, wanted)
    printed, _ = process.run("print(repr(_recording.last()))")
    verdict = _text(printed)
    points = Fraction(0) if error else worth(verdict)
    answered = bool(error) or not verdict.startswith(UNANSWERED)
    return Result(
        exercise.number,
        exercise.task,
        points,
        answered,
        "the judge raises an error" if error else verdict,
        error,
        changed,
    )


def _run_with(process: Process, attempt: Attempt, wanted: dict[str, list[str]]) -> str:
    """Run the course's statements with the reader's values, or with the reader's lines; the first error."""
    if all(kind == literal.PLAIN for kind, _ in wanted.values()):
        for one in attempt.exercise.statements:
            value = wanted.get(one.binds or "")
            is_slot = attempt.exercise.slots.get(one.binds or "") is one
            if error := process.run(f"{one.binds} = {value[1]}" if value and is_slot else one.source)[1]:
                return error
        return ""
    for source, readers in attempt.merged():
        error = process.run("_before = dict(globals())")[1] if readers else ""
        error = error or process.run(source)[1]
        if readers:  # names of the course's that the reader's lines have bound anew get their values back
            kept = set(attempt.exercise.slots) | {"_before"}
            process.run(
                f"globals().update({{_n: _v for _n, _v in _before.items() if _n not in {kept!r}"
                " and not _n.startswith('_')}); _before = None"
            )
        if error:
            return error
    return ""


def _text(printed: str) -> str:
    """The text whose repr was printed last."""
    lines = printed.strip().splitlines()
    if not lines or not literal.is_literal(lines[-1]):
        return "the judge said nothing"
    return str(ast.literal_eval(lines[-1])) or "the judge said nothing"


def worth(verdict: str) -> Fraction:
    """The points of a verdict: 1 if it is correct, the share of an answer in parts that is right, else 0."""
    if verdict.startswith("Correct"):
        return Fraction(1)
    found = PARTS.match(verdict)
    return Fraction(int(found[1]), int(found[2])) if found else Fraction(0)
