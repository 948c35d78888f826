"""Judges the exercises: compares the reader's answer with a measurement and prints how far off it is."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from numbers import Real
from typing import Any

from labkit.guesses import BYTES, Nonsense, exact, in_unit, read, without_unit

__all__ = ["judge"]


def judge(
    answer: Any,
    right: Any,
    *,
    unit: str = BYTES,
    terms: Mapping[str, float] | None = None,
    within: float = 0,
    hint: str = "",
) -> None:
    """Prints the verdict on an answer: "no answer yet", "Correct", or "off by" an amount.

    >>> judge(300 * MiB, right=lambda: peak_of(train, without_biases), terms={"a copy of y": 80 * MiB})
    off by -80.0 MiB (-21.1 %): that is a copy of y too little

    ``answer`` is ``...`` (or None) if the reader has not answered. ``right`` is the right answer, or a function that
    measures it and is called once there is an answer. Numbers, and texts such as "100 MiB", are in ``unit`` (bytes by
    default). They are right if they differ by at most the share ``within`` (0.02 is 2 %). ``terms`` names sizes by
    which a reader may be off. An answer of any other type (a name, a set, a list, a dictionary) is right if it is
    equal, and may contain sizes as texts. ``hint`` is shown until the answer is right. No answer raises an exception,
    whatever it is.
    """
    if _empty(answer):
        print("no answer yet" + _then(hint))
        return
    value: Any = right() if callable(right) else right
    if isinstance(value, Mapping):
        said = _judge_parts(answer, value, unit)
    elif isinstance(value, Real) and not isinstance(value, bool):
        said = _judge_number(answer, exact(value), unit, terms or {}, within)
    else:
        said = "Correct" if _same(answer, value) else _not_it(answer, value)
    print(said if said.startswith("Correct") else said + _then(hint))


def _judge_number(answer: Any, right: Fraction, unit: str, terms: Mapping[str, float], within: float) -> str:
    try:
        number = read(answer, unit)
    except Nonsense as error:
        return str(error).replace("a guess is", "wanted is", 1)
    assert number is not None
    off = number - right
    if off == 0:
        return f"Correct: {in_unit(right, unit)}" + (", to the byte" if unit == BYTES else "")
    if abs(off) <= Fraction(within) * abs(right):
        return f"Correct: within {100 * within:g} % of {in_unit(right, unit)}"
    if unit == BYTES and (note := without_unit(answer, right)):
        return note
    share = "" if right == 0 else f" ({100 * float(off / abs(right)):+.1f} %)"
    return f"off by {in_unit(off, unit, sign=True)}{share}{_named(off, terms)}"


def _named(off: Fraction, terms: Mapping[str, float]) -> str:
    """Returns a note that names the term by which the answer is off, once or up to 8 times."""
    for name, size in terms.items():
        times = off / exact(size) if size else Fraction(1, 2)
        if times.denominator == 1 and abs(times) <= 8:
            amount = name if abs(times) == 1 else f"{abs(times)} × {name}"
            return f": that is {amount} too {'much' if times > 0 else 'little'}"
    return ""


def _judge_parts(answer: Any, right: Mapping, unit: str) -> str:
    """Judges an answer of several parts: returns how many are right, and which to look at again."""
    if not isinstance(answer, Mapping):
        return f"wanted a dictionary with {', '.join(map(str, right))}; this is a {type(answer).__name__}"
    wrong = [str(name) for name in right if not _same(answer.get(name, ...), right[name], unit)]
    if not wrong:
        return f"Correct: all {len(right)}"
    return f"{len(right) - len(wrong)} of {len(right)} are right; look again at {', '.join(wrong)}"


def _not_it(answer: Any, right: Any) -> str:
    """Returns the verdict on a wrong answer.

    For a list it says how many parts are right; for an answer of the wrong type, which type is wanted.
    """
    for kind, several in (("list", list | tuple), ("set", set | frozenset)):
        if isinstance(right, several) and not isinstance(answer, list | tuple | set | frozenset):
            return f"wanted a {kind} of several answers; given: {type(answer).__name__}"
    if isinstance(right, list | tuple) and isinstance(answer, list | tuple) and len(answer) == len(right):
        return f"{sum(map(_same, answer, right))} of {len(right)} are right"
    return f"{answer!r} is not it"


def _same(answer: Any, right: Any, unit: str = BYTES) -> bool:
    if isinstance(right, bool) or isinstance(answer, bool):
        return answer is right
    if isinstance(right, Real) and isinstance(answer, str):
        return _reads_as(answer, exact(right), unit)
    if isinstance(right, str) and isinstance(answer, str):
        return answer.strip().casefold() == right.strip().casefold()
    if isinstance(right, list | tuple) and isinstance(answer, list | tuple):
        return len(answer) == len(right) and all(map(_same, answer, right))
    if isinstance(right, set | frozenset) and isinstance(answer, list | tuple | set | frozenset):
        return set(answer) == right
    try:
        return bool(answer == right)
    except Exception:  # a tensor, an array, or an object with a comparison of its own: not the answer
        return False


def _reads_as(answer: str, right: Fraction, unit: str) -> bool:
    """Returns whether a text such as "96 MiB" equals that number of the unit."""
    try:
        return read(answer, unit) == right
    except Nonsense:
        return False


def _empty(answer: Any) -> bool:
    """Returns whether the answer is empty: three dots or None, or a dictionary or list that holds nothing else."""
    if isinstance(answer, Mapping):
        return all(_empty(part) for part in answer.values())
    if isinstance(answer, list | tuple | set):
        return all(_empty(part) for part in answer)
    return answer is ... or answer is None or (isinstance(answer, str) and answer.strip(" .") == "")


def _then(hint: str) -> str:
    return f". Hint: {hint}" if hint else ""
