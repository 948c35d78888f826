"""Writes the small programs that the stub engine puts on the PATH."""

from __future__ import annotations

from pathlib import Path


def write(program: Path, command: str) -> Path:
    """Writes a shell script that becomes `command` with the script's own arguments, where it is missing or different.

    Returns its path, `program`. The folder is made where it is missing.
    """
    text = f'#!/bin/sh\nexec {command} "$@"\n'
    if not program.exists() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return program
