"""Names of torch that simgpu's own code uses, read from its source, and those that the installed torch does not have.

Nothing else of simgpu is imported for this, so it also works where a new torch lacks a name that simgpu needs when it
is imported. A build for the CPU lacks most of what C++ adds for CUDA. A name of that kind is known to PyTorch's own
Python code and its stubs (torch/_C/__init__.pyi), which are the same in every build, so one that is not found there
either is gone.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import torch

FOLDER = Path(__file__).parent


def gone() -> dict[str, str]:
    """Returns names that simgpu uses and the installed torch lacks, each with file and line of its first use."""
    lacking = {name: where for name, where in used_names(FOLDER).items() if not exists(name)}
    known = known_to_python(set(lacking))
    return {name: where for name, where in lacking.items() if name not in known}


def used_names(folder: Path) -> dict[str, str]:
    """Returns the dotted names of torch that Python files of a folder use, and where each is first used.

    They are read from the source: attributes of `torch` ("torch._C._cuda_x"), and what is imported from its modules. A
    name that a file looks up with `hasattr` or `getattr` is a string there, and is not found.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        for name, line in _names_of(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(name, f"{path.relative_to(folder.parent)}:{line}")
    return found


def _names_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    aliases = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch" and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}", node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname and alias.name.split(".")[0] == "torch":
                    aliases[alias.asname] = alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node)) and dotted.split(".")[0] in aliases:
            first, _, rest = dotted.partition(".")
            yield f"{aliases[first]}.{rest}", node.lineno


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None


def exists(name: str) -> bool:
    """Returns whether a dotted name of torch exists. Operators (torch.ops.…) are looked up elsewhere and count."""
    value, found = importlib.import_module("torch"), "torch"
    for part in name.split(".")[1:]:
        if part == "ops":
            return True
        found = f"{found}.{part}"
        try:
            value = getattr(value, part) if hasattr(value, part) else importlib.import_module(found)
        except ImportError:
            return not (inspect.ismodule(value) or inspect.isclass(value))  # of an instance or a result: cannot be told
    return True


def known_to_python(names: set[str]) -> set[str]:
    """Returns those of `names` ("torch._C._cudart") that PyTorch's own Python code or its stubs know.

    A name of torch._C has to be declared in a stub, imported, or used as an attribute of _C. For all others, which C++
    puts into modules of Python, any mention counts.
    """
    left = set(names)
    for path in _files(Path(torch.__file__).parent):
        if not left:
            break
        text = path.read_text(encoding="utf-8", errors="ignore")
        left -= {name for name in left if name.rpartition(".")[2] in text and _knows(text, path, name)}
    return names - left


def _knows(text: str, path: Path, name: str) -> bool:
    owner, _, word = name.rpartition(".")
    if owner != "torch._C":
        return re.search(rf"\b{word}\b", text) is not None
    if path.suffix == ".pyi":
        return re.search(rf"^(def |class )?{word}\b", text, re.MULTILINE) is not None
    return re.search(rf"\b_C\.{word}\b|from torch\._C import (\([^)]*|.*)\b{word}\b", text) is not None


def _files(folder: Path) -> Iterator[Path]:
    """Yields the stubs of torch._C first, which have almost all of its names, and then all Python code."""
    yield from sorted((folder / "_C").rglob("*.pyi"))
    yield from sorted(folder.rglob("*.py"))
