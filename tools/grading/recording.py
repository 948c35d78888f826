"""What the judging process notes: the verdicts of labkit's judge, apart from anything else that a cell prints."""

from __future__ import annotations

import contextlib
import io

import labkit
from labkit import exercise

verdicts: list[str] = []
_judge = exercise.judge


def judge(*arguments, **options) -> None:
    """labkit's judge; what it prints is noted as well."""
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        _judge(*arguments, **options)
    verdicts.append(heard.getvalue().strip())
    print(verdicts[-1])


def begin() -> None:
    """Have every `from labkit import judge` after this get the judge that is noted."""
    labkit.judge = exercise.judge = judge


def last() -> str:
    """The verdict since the last call, or nothing."""
    said = verdicts[-1] if verdicts else ""
    verdicts.clear()
    return said
