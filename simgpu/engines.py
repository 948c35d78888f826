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
    """The engine that runs a program, and the reason. `stub` is the build of PyTorch if it is the stub engine."""

    name: str
    reason: str
    stub: Engine | None = None

    def __str__(self) -> str:
        """Returns the first line of a report."""
        what = "PyTorch's own CUDA code without a GPU" if self.name == STUB else "the simulated GPU"
        version = f", torch {self.stub.version}" if self.stub else ""
        return f"Engine {self.name} ({what}{version}): {self.reason}."


_LAUNCHERS = {"torchrun", "accelerate", "trl", "deepspeed"}
_LAUNCHING_MODULES = ("torch.distributed.", "accelerate.commands", "trl", "deepspeed.launcher")
_STARTS = re.compile(r"\bmp\.spawn\b|\bmultiprocessing\.spawn\b|\bsys\.executable\b")


def choose(
    wanted: str | None,
    program: str | Path | Callable | None,
    *,
    values: bool = False,
    torch: str | None = None,
    module: str | None = None,
    only_meta: str = "",
) -> Choice:
    """Chooses the engine of a run.

    `wanted` is "stub", "meta", "auto", or None for `$SIMGPU_ENGINE` or "auto". `auto` chooses the stub engine if it is
    installed, but `meta` in four cases: for a function, if values are requested, if an option is given that only `meta`
    has (`only_meta` names it), and for a program that starts processes, which only `meta` reports one by one. The last
    case does not apply if the program's text uses what only the stub engine runs. `module` is run in place of
    `program`, and `torch` is the version of PyTorch for the stub engine. Raises EngineError if the stub engine is
    requested and missing. Raises ValueError for an unknown engine, or if the stub engine does not support what is
    requested.
    """
    name = wanted or os.environ.get(VARIABLE) or AUTO
    if name not in NAMES:
        raise ValueError(f"there is no engine {name!r}; there are {', '.join(NAMES)}")
    if name == STUB:
        if values:
            raise ValueError("the stub engine computes no values; use --engine meta with --values")
        if callable(program):
            raise ValueError("the stub engine runs scripts and modules, in a process of their own, and not a function")
        if only_meta:
            raise ValueError(f"the stub engine does not have {only_meta}; use --engine meta with it")
        return Choice(STUB, "you chose it", stub.find(torch))
    if name == META:
        return Choice(META, _with_hint("you chose it", program))
    if values:
        return Choice(META, "you gave --values, and the stub engine has no values")
    if callable(program):
        return Choice(META, "a function runs in this process")
    if torch is None and only_meta:
        return Choice(META, f"{only_meta} was given, and the stub engine does not have it")
    if torch is None and not needs(program) and _starts_processes(program, module):
        return Choice(META, "the program starts processes, and only this engine reports each of them")
    try:
        found = stub.find(torch)
    except EngineError as error:
        if torch is not None:
            raise
        return Choice(META, _with_hint(str(error).split(": ")[0].rstrip(".").lower(), program))
    return Choice(STUB, f"it is installed, and {_because(program)}", found)


def needs(program: str | Path | Callable | None) -> str:
    """Returns what a script uses that only the stub engine runs as it is on a GPU; "" if its text shows nothing."""
    if program is None or callable(program):
        return ""
    try:
        text = Path(program).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((what for what, pattern in _NEEDS if pattern.search(text)), "")


def _starts_processes(program: str | Path | None, module: str | None) -> bool:
    """Returns whether a program is a launcher, or its text shows that it starts Python processes that may use the
    GPU.
    """
    if module is not None:
        return module.startswith(_LAUNCHING_MODULES)
    if program is None or Path(program).name in _LAUNCHERS:
        return program is not None
    try:
        return bool(_STARTS.search(Path(program).read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return False


def _because(program) -> str:
    found = needs(program)
    return f"the script uses {found}" if found else "the run needs no values"


def _with_hint(reason: str, program) -> str:
    found = needs(program)
    if not found:
        return reason
    how = "simgpu engine install" + (" on Linux, in Docker or WSL too" if stub.supported() else "")
    return f"{reason}; but the script uses {found}, which only the stub engine runs as it is ({how})"
