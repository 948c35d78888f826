"""How a program ended: whether it raises an error itself in the place of one that it caught."""

from __future__ import annotations

import dis
from types import CodeType


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
