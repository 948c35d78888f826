"""What the simulated GPU uses of the torch that is imported: `python -m tools.oracle.drift.surface`, JSON on stdout.

`names` runs it in each version's environment and compares. Nothing here is specific to a version.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[3]


def used_names(folder: Path) -> dict[str, str]:
    """Dotted names of torch that the Python files of a folder use ("torch._C._cuda_x"), and where each is first used.

    Read from the source: attributes of `torch`, and what is imported from its modules. A name whose existence the file
    asks with `hasattr` or `getattr` is a string there, and not found.
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
    """Says whether a dotted name of torch exists; operators (torch.ops.…) are looked up elsewhere and count as such."""
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


def signature(function: object) -> str:
    """The signature of a function as far as it can be read: the parameters of a Python function, without their types,
    or the first line of pybind11's docstring. "" for anything else."""
    try:
        parameters = inspect.signature(function).parameters.values()  # pyright: ignore[reportArgumentType]
        plain = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
        return ", ".join(str(one).split(" at 0x")[0] for one in plain)  # an object's address is another one every time
    except (TypeError, ValueError):
        text = inspect.getdoc(function) or ""
        return text.splitlines()[0] if "(" in text.partition("\n")[0] else ""


def replaced() -> dict[str, str | None]:
    """What the simulated GPU replaces in torch: dotted name, and the signature of what was there, None if nothing."""
    import simgpu
    from simgpu.patches import Patches, recorded

    found: dict[str, str | None] = {}
    apply = Patches.apply

    def noting(self, owner, name, replacement, new=""):
        owner_name = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", type(owner).__name__)
        module = f"{owner.__module__}." if inspect.isclass(owner) else ""
        there = inspect.getattr_static(owner, name, None)
        found.setdefault(f"{module}{owner_name}.{name}", None if there is None else signature(there))
        apply(self, owner, name, replacement, new)

    with recorded(), patch.object(Patches, "apply", noting), simgpu.simulated_gpu("A100-80GB"):
        pass
    return found


def main() -> None:
    """Prints the surface of the torch that is imported."""
    import torch

    import simgpu  # noqa: F401

    names = {name: where for name, where in used_names(ROOT / "simgpu").items() if not exists(name)}
    schemas = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            schemas[f"{schema.name}.{schema.overload_name}".rstrip(".")] = str(schema)
    bindings = sorted(name for name in dir(torch._C) if name.startswith("_cuda_"))
    surface = {
        "torch": torch.__version__,
        "missing": names,
        "replaced": replaced(),
        "operators": schemas,
        "bindings": bindings,
    }
    json.dump(surface, sys.stdout)


if __name__ == "__main__":
    main()
