"""Pyodide's own files: CPython for the browser, found in an installed package, and checked before they are copied.

They are those of the npm package `pyodide`, whose sums are below, and lie unchanged in the distribution `flet-web`,
which pip installs. To go to another version, install the `flet-web` that carries it, take the sums from
`npm pack pyodide@VERSION`, and run `pytest tests/course/playground`.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

VERSION = "314.0.7"
CARRIER = "flet_web"
FILES = {
    "pyodide.mjs": "6f1d60f7bf529beb300f0f47983c921d3982363640ba20af0e38efdddbc66109",
    "pyodide.asm.mjs": "f7cdc8ece80678ceb712f8e65ebe6d3a83203a180c399865f49612a051693635",
    "pyodide.asm.wasm": "cc36e3cab04fdfc9a63ff13eb52eae2b911bf46c025cc7b281f394bd3de1d5e6",
    "python_stdlib.zip": "fa1957e5777068fc4f7437f96d860ae2fbe9c19732ba06c84e004ec16dd7dd7a",
    "pyodide-lock.json": "5dc2fc119108bc148c7457dc86e7675b5c87e1cafd420b9c34c1eaef7b36c010",
}
"""The files that a page needs, and their SHA-256."""


class NoPyodide(RuntimeError):
    """Pyodide's files are not there, or are others than those that were tested. The message says what to install."""


def folder() -> Path:
    """Where the installed package has the files. Raises NoPyodide when it is not installed."""
    spec = find_spec(CARRIER)
    found = next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None
    if found is None:
        raise NoPyodide(
            f"Pyodide is not installed: it comes with `pip install --no-deps flet-web`, in the version of "
            f"constraints.txt; or name a folder with the files of the npm package pyodide {VERSION}"
        )
    return Path(found) / "web" / "pyodide"


def files(source: Path | None = None) -> dict[str, bytes]:
    """The files by name, from `source` or from the installed package.

    Raises NoPyodide when one is missing, or is not that of version `VERSION`.
    """
    source = folder() if source is None else source
    found = {}
    for name, wanted in FILES.items():
        path = source / name
        if not path.is_file():
            raise NoPyodide(f"{path} is missing: wanted the files of Pyodide {VERSION}")
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != wanted:
            raise NoPyodide(f"{path} is not that of Pyodide {VERSION}, with which the page is tested")
        found[name] = content
    return found
