"""Decides which engine runs a program: `stub`, PyTorch's own CUDA build, or `meta`, this project's model of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simgpu.stub import engine as stub
from simgpu.stub.engine import Engine, EngineError

META, STUB, AUTO = "meta", "stub", "auto"
NAMES = (AUTO, STUB, META)
VARIABLE = "SIMGPU_ENGINE"
"""The environment variable that replaces `auto` where no engine is named."""

_EXTENSIONS = "bitsandbytes|flash_attn|xformers|liger_kernel|unsloth|torchao"
_NEEDS = (
    ("torch.compile", re.compile(r"\btorch\.compile\b|\.compile\(\s*\)|\btorch_compile\b")),
    ("Triton", re.compile(r"^\s*(?:import|from)\s+triton\b", re.M)),
    ("FlexAttention", re.compile(r"\bflex_attention\b")),
    ("a CUDA extension", re.compile(rf"^\s*(?:import|from)\s+(?:{_EXTENSIONS})\b", re.M)),
)


@dataclass(frozen=True)
class Choice:
    """The engine that runs a program, and why. `stub` is the build of PyTorch where it is the stub engine."""

    name: str
    reason: str
    stub: Engine | None = None

    def __str__(self) -> str:
        """The first line of a report."""
        what = "PyTorch's own CUDA code without a GPU" if self.name == STUB else "the simulated GPU"
        version = f", torch {self.stub.version}" if self.stub else ""
        return f"Engine {self.name} ({what}{version}): {self.reason}."


def choose(
    wanted: str | None, program: str | Path | Callable | None, *, values: bool = False, torch: str | None = None
) -> Choice:
    """Chooses the engine of a run. `wanted`: "stub", "meta", "auto", or None for `$SIMGPU_ENGINE` or "auto".

    `auto` takes the stub engine where it is installed, unless values are asked for or the program is a function.
    `torch`: the version of PyTorch, for the stub engine. Raises EngineError for a stub engine that is not there, and
    ValueError for another name, or for a stub engine that is asked for values.
    """
    name = wanted or os.environ.get(VARIABLE) or AUTO
    if name not in NAMES:
        raise ValueError(f"there is no engine {name!r}; there are {', '.join(NAMES)}")
    if name == STUB:
        if values:
            raise ValueError("the stub engine computes no values; use --engine meta with --values")
        if callable(program):
            raise ValueError("the stub engine runs scripts and modules, in a process of their own, and not a function")
        return Choice(STUB, "it was asked for", stub.find(torch))
    if name == META:
        return Choice(META, _with_hint("it was asked for", program))
    if values:
        return Choice(META, "--values was asked for, and the stub engine has none")
    if callable(program):
        return Choice(META, "a function runs in this process")
    try:
        found = stub.find(torch)
    except EngineError as error:
        if torch is not None:
            raise
        return Choice(META, _with_hint(str(error).split(": ")[0].rstrip(".").lower(), program))
    return Choice(STUB, f"it is installed, and {_because(program)}", found)


def needs(program: str | Path | Callable | None) -> str:
    """What a script uses that only the stub engine runs as it is on a GPU; "" where nothing is seen in its text."""
    if program is None or callable(program):
        return ""
    try:
        text = Path(program).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((what for what, pattern in _NEEDS if pattern.search(text)), "")


def _because(program) -> str:
    found = needs(program)
    return f"the script uses {found}" if found else "no values were asked for"


def _with_hint(reason: str, program) -> str:
    found = needs(program)
    if not found:
        return reason
    how = "simgpu engine install" + (" on Linux, in Docker or WSL too" if stub.supported() else "")
    return f"{reason}; but the script uses {found}, which only the stub engine runs as it is ({how})"
