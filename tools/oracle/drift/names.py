"""Compares what the simulated GPU uses of torch between two versions, without running a workload."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from tools.oracle import run
from tools.oracle.drift.causes import NAME_GONE, NEW_OPERATOR, SIGNATURE


def surface(version: str) -> dict[str, Any]:
    """What `surface.py` finds in torch `version`, kept until the code changes. Raises RuntimeError with its error where
    it fails."""
    kept = run.home() / "drift" / version / f"names-{code_digest()}.json"
    if kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    done = subprocess.run(
        [sys.executable, "-m", "tools.oracle.drift.surface"],
        env=run.without_gpu(version),
        cwd=run.ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"the names of torch {version} could not be read:\n{done.stderr.strip()[-2000:]}")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(done.stdout, encoding="utf-8")
    return json.loads(done.stdout)


@cache
def code_digest() -> str:
    """A digest of the simulated GPU's code: what is kept of a comparison holds for this code only."""
    hashed = hashlib.sha256()
    for path in sorted((run.ROOT / "simgpu").rglob("*")):
        if path.suffix in (".py", ".json") and not {"report", "running", "stub"} & set(path.parts):
            hashed.update(path.relative_to(run.ROOT).as_posix().encode() + path.read_bytes())
    return hashed.hexdigest()[:12]


def operator_names(of: Mapping[str, Any]) -> set[str]:
    """The operators of a surface, without namespace and overload."""
    return {name.removeprefix("aten::").split(".")[0] for name in of["operators"]}


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(cause, what) of each name, signature and operator that the simulated GPU may depend on and that changed.

    New operators are listed by name; the simulated GPU follows many of them through PyTorch's own decompositions, so
    each is something to look at and not yet a difference.
    """
    rows = [
        (NAME_GONE, f"{name} (used in {where})")
        for name, where in after["missing"].items()
        if name not in before["missing"]
    ]
    for name, was in before["replaced"].items():
        now = after["replaced"].get(name)
        if was is not None and now is None:
            rows.append((NAME_GONE, f"{name} (replaced while a simulated GPU is on)"))
        elif was is not None and now is not None and was != now:
            rows.append((SIGNATURE, f"{name}: {now}, before {was}"))
    for name in sorted(before["operators"].keys() & after["operators"].keys()):
        if before["operators"][name] != after["operators"][name]:
            rows.append((SIGNATURE, f"{after['operators'][name]}, before {before['operators'][name]}"))
    rows += [
        (NAME_GONE, f"{name} (operator)") for name in sorted(before["operators"].keys() - after["operators"].keys())
    ]
    replaced = {name.rsplit(".", 1)[-1] for name in after["replaced"]}
    new_bindings = set(after["bindings"]) - set(before["bindings"]) - replaced
    rows += [
        (NEW_OPERATOR, f"torch._C.{name} (a binding that the simulated GPU lacks)") for name in sorted(new_bindings)
    ]
    rows += [(NEW_OPERATOR, name) for name in sorted(after["operators"].keys() - before["operators"].keys())]
    return rows
