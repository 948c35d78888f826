"""Finds out whether an `assert` reads a truth value, because it holds in a run that goes well.

The bytecode of the line shows it: after the test there is a jump over, or to, the raising of an AssertionError. `dis`
names instructions differently in each Python: 3.11 tests in the jump itself, 3.13 in a TO_BOOL before it, and 3.14
loads the AssertionError with LOAD_COMMON_CONSTANT.
"""

import dis
from functools import lru_cache
from types import CodeType, FrameType

_BETWEEN = ("TO_BOOL", "PRECALL", "NOT_TAKEN", "CACHE", "EXTENDED_ARG")


def held(frame: FrameType) -> bool | None:
    """Returns the truth value with which the `assert` in `frame` holds, or None if no `assert` reads it."""
    return _answers(frame.f_code).get(frame.f_lasti)


@lru_cache(maxsize=1024)
def _answers(code: CodeType) -> dict[int, bool]:
    """Returns the answer with which an `assert` holds, by the offset of the instruction that tests, or that calls the
    test.
    """
    steps = list(dis.get_instructions(code))
    raising = {step.offset for step in steps if _raises(step)}
    answers = {}
    for number, step in enumerate(steps[:-1]):
        if not step.opname.startswith("POP_JUMP") or not step.opname.endswith(("IF_TRUE", "IF_FALSE")):
            continue
        jumps_if = step.opname.endswith("IF_TRUE")
        after = next((one.offset for one in steps[number + 1 :] if one.opname not in _BETWEEN), None)
        if after not in raising and step.argval not in raising:
            continue
        first = number  # the first of the instructions that may be testing
        while first > 0 and steps[first - 1].opname in _BETWEEN:
            first -= 1
        if first > 0 and steps[first - 1].opname.startswith("CALL"):
            first -= 1
        # the offsets up to the next instruction are its cache, where a Python call waits
        asking = range(steps[first].offset, steps[number + 1].offset)
        answers.update(dict.fromkeys(asking, jumps_if if after in raising else not jumps_if))
    return answers


def _raises(step: dis.Instruction) -> bool:
    common = step.opname == "LOAD_COMMON_CONSTANT" and "AssertionError" in step.argrepr
    return step.opname == "LOAD_ASSERTION_ERROR" or common
