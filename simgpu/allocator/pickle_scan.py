"""Scans a pickle before it is loaded, and refuses one that needs more memory than its own bytes account for.

A pickle is a program, and a few of its bytes can request gigabytes: a large index in the memo, which is a C array, or a
string that is longer than the file. The scan reads each opcode and builds nothing.
"""

import pickletools

_COUNTED = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_OPCODES = {ord(op.code): op for op in pickletools.opcodes}
_PLACES = {"PUT", "BINPUT", "LONG_BINPUT"}
_STOP = ord(".")
# Opcodes by the number of bytes that follow them, which need no check. They make up most of a pickle.
_FIXED = {
    code: 0 if op.arg is None else op.arg.n
    for code, op in _OPCODES.items()
    if op.name not in {*_PLACES, "FRAME"} and (op.arg is None or op.arg.n >= 0)
}


def check(content: bytes) -> None:
    """Raises ValueError for a pickle that is truncated, or needs more memory than its bytes account for."""
    at, end, fixed = 0, len(content), _FIXED
    while at < end:
        code = content[at]
        at += 1
        if code == _STOP:
            return
        length = fixed.get(code)
        at = at + length if length is not None else _past_argument(content, code, at)
    raise ValueError("the file is empty or ends too early")


def _past_argument(content: bytes, code: int, at: int) -> int:
    """Checks the argument at `at`, and returns the position of the next opcode."""
    op = _OPCODES.get(code)
    if op is None or op.arg is None:
        raise ValueError(f"no pickle, or a broken one ({bytes([code])!r} is no opcode)")
    if op.arg.n == pickletools.UP_TO_NEWLINE:
        end = content.find(b"\n", at)
        for _ in range(op.name in ("GLOBAL", "INST")):  # a module and a name
            end = content.find(b"\n", end + 1) if end >= 0 else end
        argument, after = content[at:end], end + 1 if end >= 0 else len(content) + 1
    elif op.arg.n in _COUNTED:
        begin = at + _COUNTED[op.arg.n]
        argument, after = b"", begin + int.from_bytes(content[at:begin], "little")
    else:
        after = at + op.arg.n
        argument = content[at:after]
    if after > len(content):
        raise ValueError("the file is empty or ends too early")
    if op.name in _PLACES:
        place = int(argument) if op.name == "PUT" else int.from_bytes(argument, "little")
        if not 0 <= place <= len(content):  # objects are numbered one by one, and each needs at least one byte
            raise ValueError(f"no pickle, or a broken one (place {place} in the memo of {len(content)} bytes)")
    return after
