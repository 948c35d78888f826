"""How a program ended, on both engines: normally, because of memory, by a different error, by a limit, or by Ctrl-C."""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass
from types import CodeType
from typing import Protocol

from simgpu.report.verdict import COMPLETED, OUT_OF_MEMORY, STOPPED
from simgpu.running.script import StepsDone

OF_VALUES = "\nBefore that it received 0 in place of values (listed below), which may be why: --values computes them."
"""A hint about an error of a program that has read values which are not known."""
NOT_OF_VALUES = (ImportError, FileNotFoundError)
"""Errors that a value is not the cause of, so that the hint would lead astray."""


@dataclass(frozen=True)
class End:
    """How a program ended: "completed", "out of memory" or "stopped", and a sentence about it.

    `bounds`: why the peak may be higher than what was seen. `interrupted`: whether Ctrl-C ended it.
    """

    ending: str
    text: str = ""
    bounds: tuple[str, ...] = ()
    interrupted: bool = False


class Ran(Protocol):
    """Names what an engine knows of a program that has ended."""

    def steps(self) -> int:
        """How many steps the optimizer with most of them has made."""
        ...

    def failing(self) -> frozenset[CodeType] | None:
        """The code that was running when an allocation failed, if none succeeded after it: an empty set if one did,
        and None if no allocation failed."""
        ...

    def unreached(self) -> tuple[str, ...]:
        """Says why the peak may be higher than what was seen: what the program had not reached when it ended."""
        ...

    def without_effect(self) -> str:
        """Advice where a limit had no effect, "" otherwise."""
        ...

    def reached(self) -> str:
        """Says which limit was reached, "" where none was. A program may have caught the exception that ends it."""
        ...

    def hint(self, error: BaseException) -> str:
        """A sentence about what may have caused an error, which begins a line; "" where nothing is known."""
        ...


def ended_by(error: BaseException | None, ran: Ran) -> End:
    """Says what it means that a program ended with this error, or without one if it is None."""
    if error is None:
        return End(COMPLETED, ran.reached() or ran.without_effect(), ran.unreached())
    if isinstance(error, StepsDone):
        return End(COMPLETED, str(error), ran.unreached())
    if isinstance(error, KeyboardInterrupt):
        return _interrupted(ran.steps())
    return _exit(error, ran) if isinstance(error, SystemExit) else _failed(error, ran)


def _interrupted(made: int) -> End:
    """Ctrl-C: what was found until then is shown."""
    text = f"Interrupted by Ctrl-C, after {made or 'no'} optimizer step{'s' * (made != 1)}."
    return End(COMPLETED, text, ("it was interrupted, so the peak may come later",), interrupted=True)


def _exit(error: SystemExit, ran: Ran) -> End:
    if error.code in (None, 0):
        return End(COMPLETED, ran.reached(), ran.unreached())
    if _because_of_memory(error, ran):
        return End(OUT_OF_MEMORY, f"The program ended with status {error.code} after the error.")
    return _after_limit(f"status {error.code}", ran) or End(
        STOPPED, f"it ended with status {error.code}{ran.hint(error)}"
    )


def _failed(error: BaseException, ran: Ran) -> End:
    """An error that the program did not catch."""
    said = _headline(error)
    if _because_of_memory(error, ran):
        raised_afresh = not isinstance(error, _kind())
        return End(OUT_OF_MEMORY, f"The program ended with {said}" if raised_afresh else "")
    return _after_limit(said, ran) or End(STOPPED, said + ran.hint(error))


def _after_limit(ending: str, ran: Ran) -> End | None:
    """The end of a program that caught what ends it at the limit, as pytest does, and went on; None for any other."""
    if not ran.reached():
        return None
    return End(COMPLETED, f"{ran.reached()} The program caught that, and ended later with {ending}.", ran.unreached())


def _headline(error: BaseException) -> str:
    """An error's name and the first line of its text, and the next one where the first ends with a colon.

    Libraries quote a cause so: "backend='inductor' raised:" (torch._dynamo), "Failed to import … following error:".
    """
    first, *more = (line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip())
    return f"{first} {more[0]}" if more and first.endswith(":") else first


def _because_of_memory(error: BaseException, ran: Ran) -> bool:
    """Whether an error is one of memory, came from one, or was raised in its place.

    The last is so where no allocation succeeded after the last failed one, and the function that was running when that
    failed raises the error itself. A batch size finder does this when it has tried the smallest batch.
    """
    failing = ran.failing()
    if failing is None:
        return False
    return of_memory(error) is not None or raising_code(error) in failing


def of_memory(error: BaseException | None) -> BaseException | None:
    """The out-of-memory error of PyTorch's that an error is, or that it came from; None if there is none."""
    kind = _kind()
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _kind() -> type[BaseException] | tuple[()]:
    """torch.OutOfMemoryError, if the program has imported torch."""
    return getattr(sys.modules.get("torch"), "OutOfMemoryError", ())


def raising_code(error: BaseException) -> CodeType | None:
    """Returns the code object that raises an error with a statement of its own, or that ends the program.

    None if the error came from an operation, such as a lookup, or has no traceback. A batch size finder that has tried
    the smallest batch raises such an error, and its code was running when memory ran out.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return None
    code = place.tb_frame.f_code
    if isinstance(error, SystemExit):
        return code
    return code if dis.opname[code.co_code[place.tb_lasti]] in ("RAISE_VARARGS", "RERAISE") else None
