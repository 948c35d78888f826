"""A graded notebook as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from tools.grading.grade import Result
from tools.grading.submission import Submission


def as_text(submission: Submission, results: list[Result], gpu: str) -> Iterator[str]:
    """Lines for a reader."""
    yield f"{submission.path.name}: the exercises of {submission.chapter.path.stem}, on a simulated {gpu}"
    for one in results:
        yield f"  {number(one.points):>4} of 1   {one.number}. {one.task} {one.error or one.verdict}"
        for line in one.changed:
            yield f"               changed, so the course's was used: {line}"
    yield f"  {number(total(results)):>4} of {len(results)}   ({number(100 * share(results))} %)"


def as_json(submission: Submission, results: list[Result], gpu: str) -> dict:
    """What --json writes: points are numbers of at most four decimals, `share` is in percent."""
    return {
        "notebook": submission.path.name,
        "chapter": submission.chapter.path.stem,
        "gpu": gpu,
        "points": rounded(total(results)),
        "of": len(results),
        "share": rounded(100 * share(results)),
        "exercises": [
            {
                "number": one.number,
                "task": one.task.rstrip(".:"),
                "points": rounded(one.points),
                "of": 1,
                "answered": one.answered,
                "verdict": one.verdict,
                "error": one.error or None,
                "changed": list(one.changed),
            }
            for one in results
        ],
    }


def total(results: list[Result]) -> Fraction:
    return sum((one.points for one in results), Fraction(0))


def share(results: list[Result]) -> Fraction:
    """The share of all points, of 1."""
    return total(results) / len(results)


def rounded(value: Fraction) -> float:
    return round(float(value), 4)


def number(value: Fraction) -> str:
    return f"{float(value):.2f}".rstrip("0").rstrip(".")
