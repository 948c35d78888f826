"""The reader's guesses: each beside the prediction on paper and the measurement, and the score at the end of a chapter.

A cell asks for a number, a later one compares it::

    guess_forward = ...  # your number, e.g. 100 * MiB

    guesses.compare("forward adds", guess=guess_forward, paper=outputs, measured=ledger["forward"].added)

Three dots mean that there is no guess yet; then the line says so and everything goes on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

from labkit.units import MIB, Size, mib

BYTES = "B"
UNITS = {"B": 1, "byte": 1, "bytes": 1, "KiB": 2**10, "MiB": MIB, "GiB": 2**30}
WANTED = "a guess is a number of bytes such as 100 * MiB, or a text such as '100 MiB'"
CLOSE = Fraction(1, 100)  # a guess within 1 % is a good one


class Nonsense(ValueError):
    """Something that cannot be read as a guess; its text is one line for the reader."""


@dataclass(frozen=True)
class Guess:
    """A question, the reader's guess, the number on paper (each may be None: there is none), and the measured one."""

    question: str
    unit: str
    guess: Fraction | None
    paper: Fraction | None
    measured: Fraction

    @property
    def right(self) -> bool:
        return self.guess == self.measured

    @property
    def close(self) -> bool:
        """Within 1 % of what was measured."""
        return self.guess is not None and abs(self.guess - self.measured) <= CLOSE * abs(self.measured)

    def __str__(self) -> str:
        rows = [("your guess", self.guess, "none yet")]
        rows += [("on paper", self.paper, "")] if self.paper is not None else []
        rows += [("measured", self.measured, "")]
        texts = [none if number is None else in_unit(number, self.unit) for _, number, none in rows]
        width = max(map(len, texts))
        lines = [
            f"  {name:10}  {text:>{width}}  {self._off(number) if name != 'measured' else ''}".rstrip()
            for (name, number, _), text in zip(rows, texts, strict=True)
        ]
        return "\n".join([self.question, *lines])

    def _off(self, number: Fraction | None) -> str:
        """How far a number is from the measured one."""
        if number is None:
            return ""
        off = number - self.measured
        if off == 0:
            return "equal to the byte" if self.unit == BYTES else "equal"
        share = f", {100 * float(abs(off / self.measured)):.1f} %" if self.measured else ""
        return f"{in_unit(abs(off), self.unit)} too {'high' if off > 0 else 'low'}{share}"


_asked: dict[str, Guess] = {}


def compare(question: str, *, guess: Any, measured: Any, paper: Any = None, unit: str = BYTES) -> None:
    """Print the guess, the prediction on paper and the measurement side by side, and keep them for :func:`score`.

    >>> compare("forward adds", guess="150 MiB", paper=160 * MIB, measured=176_291_840)
    forward adds
      your guess    150.0 MiB  18.125 MiB too low, 10.8 %
      on paper      160.0 MiB  8.125 MiB too low, 4.8 %
      measured    168.125 MiB

    ``guess`` is ``...`` (or None) where there is none, a number, or a text with a unit: "150 MiB", "512 B". What
    cannot be read is said in one line, and counts as no guess. The three are bytes unless ``unit`` names another unit
    ("rows", "ms"). A question asked again, as when a cell is run twice, takes the place of the earlier one.
    """
    nonsense = ""
    try:
        guessed = read(guess, unit)
    except Nonsense as error:
        guessed, nonsense = None, str(error)
    asked = Guess(question, unit, guessed, None if paper is None else exact(paper), exact(measured))
    _asked[question] = asked
    if nonsense:
        print(nonsense)
    elif unit == BYTES and (note := without_unit(guess, asked.measured)):
        print(note)
    print(asked)


def score() -> Size:
    """The reader's score: how many guesses, how many within 1 %, how many exact.

    >>> score()
    4 guesses: 3 within 1 %, 1 to the byte
    """
    made = [one for one in _asked.values() if one.guess is not None]
    missing = len(_asked) - len(made)
    if not _asked:
        return Size("no question was asked yet: run the cells above first")
    if not made:
        return Size(f"no guess yet: {_count(len(_asked), 'question')} to go back to, each a cell with three dots")
    exact = "to the byte" if all(one.unit == BYTES for one in made) else "exact"
    close = sum(one.close for one in made)
    text = f"{_count(len(made), 'guess')}: {close} within 1 %, {sum(one.right for one in made)} {exact}"
    return Size(text + (f"; {_count(missing, 'question')} without a guess" if missing else ""))


def forget() -> None:
    """Drop every question, for a notebook that begins again."""
    _asked.clear()


def read(guess: Any, unit: str = BYTES) -> Fraction | None:
    """The guess as a number of ``unit``, None where there is none. Raises :class:`Nonsense` for what is no guess."""
    if guess is ... or guess is None or (isinstance(guess, str) and guess.strip(" .") == ""):
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
    """The number as a fraction: of any kind that is real, NumPy's too."""
    return Fraction(number) if isinstance(number, int | float | Fraction) else Fraction(float(number))


def in_unit(number: Fraction, unit: str, sign: bool = False) -> str:
    """A number with its unit: bytes as MiB, anything else with at most three decimals."""
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
    """The word for what is no guess: two kinds are wanted of bytes, one of any other unit."""
    return "neither" if unit == BYTES else "none"


def without_unit(answer: Any, measured: Fraction) -> str:
    """A line on a number without a unit that was probably meant to be MiB; "" of any other."""
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not 0 < answer < 65_536 <= abs(measured):
        return ""
    return f"{answer} without a unit is {answer} B; if you meant MiB, write {answer} * MiB"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"


def _count(number: int, name: str) -> str:
    plural = f"{name}es" if name.endswith("s") else f"{name}s"
    return f"{number} {name if number == 1 else plural}"
