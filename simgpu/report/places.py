"""Places in a program: the innermost line of the user's, and of a library's, on the stack of an allocation."""

import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch

from simgpu.tracebacks import PATHS

_TORCH = (*PATHS, str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_LIBRARIES = tuple(  # the innermost first, so that a file's short name is always the same one
    sorted(
        {
            str(Path(folder))
            for folder in (
                *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
                *site.getsitepackages(),
                site.getusersitepackages(),
                *(str(Path(sys.base_prefix) / "lib"), str(Path(sys.base_prefix) / "Lib")),
            )
        },
        key=lambda folder: (-len(folder), folder),
    )
)
OWN, LIBRARY, TORCH = "own", "library", "torch"
_STANDARD = tuple(str(Path(sysconfig.get_paths()[name])) for name in ("stdlib", "platstdlib"))
_INSTALLED = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")
_GENERATED = ("<frozen", "<eval_with_key>")  # Python's own modules; torch.fx (torch/fx/graph_module.py)
_RUNNERS = ("running/run.py", "running/script.py", "fitting/measuring.py")  # of this package: they call a program
_RUNNER = tuple(str(Path(__file__).parents[1] / name) for name in _RUNNERS)
_OTHERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("_pytest", "IPython", "ipykernel"))  # that call one
_CELL = "ipykernel_"  # in the name of the file that a notebook's cell pretends to be
DEEPEST = 200  # frames that are looked at
MOST = 50_000  # code objects that are kept; a program may make new ones without end


class Place(NamedTuple):
    """A line of a program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """ "train.py:64 in forward": a file of the folder that one is in by its path from there."""
        where = f" in {self.function}" if self.function not in ("", "<module>") else ""
        return f"{shortened(self.file)}:{self.line}{where}"


def shortened(file: str) -> str:
    """A file's name for a reader: from site-packages (which may be in the current folder), or from a folder of Python's
    path, or whole."""
    path = Path(file)
    if _CELL in file:
        return "a cell of the notebook"
    for folder in (*map(Path, _LIBRARIES), Path.cwd()):
        if path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    inside = _INSTALLED.sub("", file)
    if inside != file:
        return inside
    roots = [Path(one) for one in sys.path if one and path.is_relative_to(one)]
    return path.relative_to(max(roots, key=lambda one: len(one.parts))).as_posix() if roots else file


@cache
def kind_of(file: str) -> str:
    """Classifies a file: TORCH (PyTorch's, Python's own, or this package's; pages show none of these), LIBRARY
    (installed), or the user's OWN.

    Text that was given to exec() is the user's, but not the code that torch.fx generates for a graph module."""
    if file.startswith(_TORCH) or file.startswith(_GENERATED):
        return TORCH
    if file.startswith("<"):
        return OWN
    installed = _INSTALLED.match(file) is not None
    if not installed and file.startswith(_STANDARD):
        return TORCH
    return LIBRARY if installed or file.startswith(_LIBRARIES) else OWN


class Seen(NamedTuple):
    """The result for a stack: the innermost place of the user's own, that of a library inside of it, and the innermost
    code of those that were looked for. `by_function`: whether the user's own code there is a function and no method."""

    own: Place | None
    library: Place | None
    code: object
    by_function: bool = False


@cache
def runs_it(file: str) -> bool:
    """Returns whether a file belongs to what runs the program: this package, pytest, or a notebook's kernel."""
    return file.startswith(_RUNNER) or (any(name in file for name in _OTHERS) and _CELL not in file)


class Codes:
    """What is known of code objects: the answer for each, None for most, and what its file is.

    They are found by identity, because Python computes the hash of a code object anew each time, from its constants.
    """

    def __init__(self, answers: Mapping, otherwise: Callable[[CodeType], Any]):
        self._answers, self._otherwise = answers, otherwise
        self.known: dict[int, tuple] = {}

    def look(self, code: CodeType) -> tuple:
        """Returns the answer, whether the file runs the program, and the file's kind, and notes them."""
        if len(self.known) >= MOST:
            self.known.clear()
        answer = self._answers[code] if code in self._answers else self._otherwise(code)
        file = code.co_filename
        found = self.known[id(code)] = (answer, runs_it(file), kind_of(file), code)  # the last one reserves the id
        return found


def seen(frame, codes: Codes, weak=()) -> Seen:
    """The innermost places of a stack from `frame` outwards, with the answers of `codes` on the way. The innermost
    answer counts, but one that is in `weak` gives way to another further out."""
    own = library = None
    by_function = False
    found = None
    known = codes.known
    for _ in range(DEEPEST):
        if frame is None:
            break
        code = frame.f_code
        answer, runs, kind, _ = known.get(id(code)) or codes.look(code)
        if answer is not None and (found is None or found in weak):
            found = answer
        if runs:
            break
        if kind is OWN:
            own = Place(code.co_filename, frame.f_lineno, code.co_name)
            by_function = library is None and code.co_varnames[:1] != ("self",)
            break
        if kind is LIBRARY and library is None:
            library = Place(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return Seen(own, library, found, by_function)


def codes_of(frame) -> list:
    """The code objects of a stack, innermost first."""
    codes = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes


def stack(frame) -> list[Place]:
    """The lines of a stack that are not PyTorch's, innermost first, up to what runs the program."""
    places = []
    for _ in range(DEEPEST):
        if frame is None:
            break
        code = frame.f_code
        if runs_it(code.co_filename):
            break
        if kind_of(code.co_filename) is not TORCH:
            places.append(Place(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return places
