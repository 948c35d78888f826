"""Compares the reader's guesses with estimate and measurement, and gives the score at the end of a chapter.

A cell asks for a number, and a later one compares it::

    guess_forward = ...  # your number, e.g. 100 * MiB

    guesses.compare("forward adds", guess=guess_forward, estimate=outputs, measured=ledger["forward"].added)

Three dots mean that there is no guess yet. In the course's notebooks the output says so and shows the measurement. In
the reader's own copy (tools/workspace_copy.py) it shows the measurement only after a guess or "skip". Either way the
notebook continues.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import Any

from labkit.units import MiB, Size, mib

__all__ = ["compare", "score"]

BYTES = "B"
UNITS = {"B": 1, "byte": 1, "bytes": 1, "KiB": 2**10, "MiB": MiB, "GiB": 2**30}
WANTED = "a guess is a number of bytes such as 100 * MiB, or a text such as '100 MiB'"
NEAR, CLOSE = Fraction(1, 10), Fraction(1, 100)  # shares of the measured value by which a guess may be off
SKIP = "skip"  # in place of a guess, to see the measurement without one
TIMES = ("s", "ms", "µs")  # units whose simulated values have two digits
READERS_COPY = Path(".made.json")  # is in the working directory of a reader's copy: tools.workspace_copy.NOTE


class Nonsense(ValueError):
    """Raised for a value that cannot be read as a guess; its message is one line for the reader."""


@dataclass(frozen=True)
class Guess:
    """Holds a question with the reader's guess, the estimate (either may be None), and the measured value."""

    question: str
    unit: str
    guess: Fraction | None
    estimate: Fraction | None
    measured: Fraction
    label: str = "measured"
    skipped: bool = False

    @property
    def right(self) -> bool:
        return self.guess == self.measured

    @property
    def factor_of_2(self) -> bool:
        """Returns whether the guess is between half and twice the measured value."""
        low, high = sorted((self.measured / 2, self.measured * 2))
        return self.guess is not None and low <= self.guess <= high

    def within(self, share: Fraction) -> bool:
        """Returns whether the guess is off by at most this share of the measured value."""
        return self.guess is not None and abs(self.guess - self.measured) <= share * abs(self.measured)

    def __str__(self) -> str:
        rows = [("your guess", self.guess, "skipped" if self.skipped else "none yet")]
        rows += [("estimate", self.estimate, "")] if self.estimate is not None else []
        rows += [(self.label, self.measured, "")]
        texts = [none if number is None else self._shown(number) for _, number, none in rows]
        width = max(map(len, texts))
        lines = [
            f"  {name:10}  {text:>{width}}  {self._off(number) if name != self.label else ''}".rstrip()
            for (name, number, _), text in zip(rows, texts, strict=True)
        ]
        return "\n".join([self.question, *lines])

    def _shown(self, number: Fraction) -> str:
        """Returns a number with its unit; simulated times have two digits, and three decimals at most."""
        if self.label == "simulated" and self.unit in TIMES:
            return f"{round(float(f'{float(number):.2g}'), 3):,.10g} {self.unit}"
        return in_unit(number, self.unit)

    def _off(self, number: Fraction | None) -> str:
        """Describes how far a number is from the measured one."""
        if number is None:
            return ""
        off = number - self.measured
        if off == 0:
            return "equal to the byte" if self.unit == BYTES else "equal"
        share = f", {100 * float(abs(off / self.measured)):.1f} %" if self.measured else ""
        return f"{self._shown(abs(off))} too {'high' if off > 0 else 'low'}{share}"


_asked: dict[str, Guess] = {}


def compare(
    question: str,
    *,
    guess: Any,
    measured: Any = None,
    simulated: Any = None,
    calculated: Any = None,
    estimate: Any = None,
    unit: str = BYTES,
) -> None:
    """Prints guess, estimate and measurement next to each other, and records them for :func:`score`.

    >>> compare("forward adds", guess="150 MiB", estimate=160 * MiB, measured=176_291_840)
    forward adds
      your guess    150.0 MiB  18.125 MiB too low, 10.8 %
      estimate      160.0 MiB  8.125 MiB too low, 4.8 %
      measured    168.125 MiB

    ``guess`` is ``...`` (or None) if there is none, a number, or a text with a unit: "150 MiB", "512 B". A guess that
    cannot be read is reported in one line and counts as missing. Without a guess, a reader's own copy prints one line
    in place of the values, unless the guess is "skip". The three are in bytes unless ``unit`` names another
    unit ("rows", "ms"). A time of the simulated clock is given as ``simulated`` in place of ``measured``, and its times
    have two digits. A result of arithmetic is given as ``calculated``. Each is printed under its name. A question that
    is asked again, as when a cell runs
    twice, replaces the earlier one. Raises ``TypeError`` unless exactly one of the three is given.
    """
    values = {"measured": measured, "simulated": simulated, "calculated": calculated}
    given = [(label, value) for label, value in values.items() if value is not None]
    if len(given) != 1:
        raise TypeError("compare() takes one of measured=..., simulated=... and calculated=...")
    label, value = given[0]
    nonsense = ""
    try:
        guessed = read(guess, unit)
    except Nonsense as error:
        guessed, nonsense = None, str(error)
    skipped = isinstance(guess, str) and guess.strip(" .").lower() == SKIP
    asked = Guess(question, unit, guessed, None if estimate is None else exact(estimate), exact(value), label, skipped)
    _asked[question] = asked
    if guessed is None and not skipped and READERS_COPY.exists():
        print(f"{question}: {nonsense or 'no guess yet'}")
        print(f'  put a number in place of the dots (or "{SKIP}") and run both cells to see the result')
        return
    if nonsense:
        print(nonsense)
    elif unit == BYTES and (note := without_unit(guess, asked.measured)):
        print(note)
    print(asked)


def score() -> Size:
    """Returns the reader's score: the number of guesses, and how many of them are how close.

    >>> score()
    4 guesses: 4 within a factor of 2, 3 within 10 %, 3 within 1 %, 1 to the byte

    Each count includes the closer guesses.
    """
    made = [one for one in _asked.values() if one.guess is not None]
    skipped = sum(one.skipped for one in _asked.values())
    missing = len(_asked) - len(made) - skipped
    if not _asked:
        return Size("no question was asked yet: run the cells above first")
    if not made and not skipped:
        return Size(f"no guess yet: {_count(missing, 'question')} to go back to, each a cell with three dots")
    counts = {
        "within a factor of 2": sum(one.factor_of_2 for one in made),
        "within 10 %": sum(one.within(NEAR) for one in made),
        "within 1 %": sum(one.within(CLOSE) for one in made),
        "to the byte" if all(one.unit == BYTES for one in made) else "exact": sum(one.right for one in made),
    }
    text = _count(len(made), "guess")
    text += ": " + ", ".join(f"{count} {how}" for how, count in counts.items()) if made else ""
    text += f"; {_count(skipped, 'question')} skipped" if skipped else ""
    return Size(text + (f"; {_count(missing, 'question')} without a guess" if missing else ""))


def forget() -> None:
    """Drops every question, for a notebook that starts again."""
    _asked.clear()


def read(guess: Any, unit: str = BYTES) -> Fraction | None:
    """Returns the guess as a number of ``unit``, or None if there is none.

    Raises :class:`Nonsense` for a value that is not a guess.
    """
    if guess is ... or guess is None or (isinstance(guess, str) and guess.strip(" .").lower() in ("", SKIP)):
        return None
    wanted = WANTED if unit == BYTES else f"a guess is a number of {unit}"
    if isinstance(guess, str):
        return _read_text(guess, unit, wanted)
    if isinstance(guess, bool) or not isinstance(guess, Real):
        raise Nonsense(f"{wanted}; {_short(guess)} is {_none(unit)}")
    if guess != guess or guess in (float("inf"), float("-inf")):
        raise Nonsense(f"{wanted}; {guess} is no number")
    return exact(guess)


def exact(number: Any) -> Fraction:
    """Converts any real number, also one of NumPy's, to a fraction."""
    return Fraction(number) if isinstance(number, int | float | Fraction) else Fraction(float(number))


def in_unit(number: Fraction, unit: str, sign: bool = False) -> str:
    """Formats a number with its unit: bytes as MiB, anything else with at most three decimals."""
    if unit == BYTES:
        return str(mib(round(number), sign=sign))
    places = 0 if number.denominator == 1 else 3
    return f"{float(number):{'+' if sign else ''},.{places}f} {unit}".strip()


def _read_text(text: str, unit: str, wanted: str) -> Fraction:
    units = UNITS if unit == BYTES else {unit: 1}
    found = re.fullmatch(r"\s*([-+]?[\d_,]*\.?\d+)\s*([^\d\s].*?)?\s*", text)
    if found is None or (found[2] or unit) not in units:
        hint = f" ({found[2]} is 10⁶ or 2²⁰ bytes, as people like it)" if found and found[2] == "MB" else ""
        raise Nonsense(f"{wanted}; {text!r} is {_none(unit)}{hint}")
    return Fraction(re.sub("[_,]", "", found[1])) * units[found[2] or unit]


def _none(unit: str) -> str:
    """Returns the word for a value that is not a guess: "neither" for bytes, which accept two forms, else "none"."""
    return "neither" if unit == BYTES else "none"


def without_unit(answer: Any, measured: Fraction) -> str:
    """Returns a note on a number without a unit that was probably meant in MiB, and "" for any other."""
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not 0 < answer < 65_536 <= abs(measured):
        return ""
    return f"{answer} without a unit is {answer} B; if you meant MiB, write {answer} * MiB"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"


def _count(number: int, name: str) -> str:
    plural = f"{name}es" if name.endswith("s") else f"{name}s"
    return f"{number} {name if number == 1 else plural}"
