"""What the judging process notes: the verdicts of labkit's judge, apart from anything else that a cell prints."""

from __future__ import annotations

from labkit import exercise

verdicts: list[str] = []


def say(verdict: str) -> None:
    """What the judge has in the place of print: what a measurement prints meanwhile is no verdict."""
    verdicts.append(verdict)
    print(verdict)


def begin() -> None:
    """From here on every verdict is noted."""
    vars(exercise)["print"] = say


def last() -> str:
    """The verdict since the last call, or nothing."""
    said = verdicts[-1] if verdicts else ""
    verdicts.clear()
    return said
