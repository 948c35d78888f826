"""Finds a C compiler: `$CC`, cc, gcc or clang, or the one that the `ziglang` wheel brings."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from simgpu.stub import scripts

NAMES = ("cc", "gcc", "clang")


def command() -> list[str] | None:
    """The command line of a C compiler, without arguments; None where there is none."""
    wanted = os.environ.get("CC", "")
    if wanted and shutil.which(shlex.split(wanted)[0]):
        return shlex.split(wanted)
    for name in NAMES:
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def as_program(folder: Path) -> Path | None:
    """The compiler as one executable, for programs that take only a name, such as Triton (`CC`).

    Returns None where cc, gcc or clang is on the PATH, because everything finds those. The `ziglang` wheel's gets a
    script in `folder`.
    """
    found = command()
    if found is None or len(found) == 1:
        return None
    return scripts.write(folder / "cc", shlex.join(found))


def run(arguments: list) -> None:
    """Compiles. Raises RuntimeError, with what the compiler printed, where it fails or where there is none."""
    found = command()
    if found is None:
        raise RuntimeError("no C compiler was found: install gcc or clang, or `pip install ziglang`")
    done = subprocess.run([*found, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{found[0]} failed:\n{done.stderr[-2000:]}")
