"""What the simulated GPU uses of the torch that is imported: `python -m tools.oracle.drift.surface`, JSON on stdout.

`names` runs it in each version's environment and compares. Nothing here is specific to a version.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from unittest.mock import patch

from simgpu.used_names import exists, used_names

ROOT = Path(__file__).parents[3]


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
