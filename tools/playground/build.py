"""Puts the page into a folder that any web server can serve: the page, Pyodide, and the project's own allocator.

The Python files are taken from the packages as they are, into one archive: there is no second copy of the allocator.
No network is needed.
"""

from __future__ import annotations

import io
import shutil
import zipfile
from importlib.metadata import files as files_of
from pathlib import Path

from tools.playground import pyodide

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = HERE / "page"
ARCHIVE = "playground.zip"
MODULES = (
    "simgpu/__init__.py",
    "simgpu/allocator/*.py",
    "simgpu/data/gpus.json",
    "simgpu/gpus/*.py",
    "simgpu/report/__init__.py",
    "simgpu/report/sizes.py",
    "tools/__init__.py",
    "tools/playground/__init__.py",
    *(f"tools/playground/{name}.py" for name in ("answers", "game", "replay", "state", "tasks", "telling")),
)
"""What runs in the browser, besides sortedcontainers."""

BEFORE_ALL_OTHERS = (1980, 1, 1, 0, 0, 0)  # the first date of a zip archive: the same files give the same archive


def archive() -> bytes:
    """The Python files that run in the browser, zipped. The same files give the same bytes.

    Raises FileNotFoundError when sortedcontainers is not installed by pip's rules (it lists no files).
    """
    content = {path.relative_to(ROOT).as_posix(): path for line in MODULES for path in ROOT.glob(line)}
    installed = [path for path in files_of("sortedcontainers") or () if path.suffix == ".py" and ".." not in path.parts]
    content |= {path.as_posix(): Path(str(path.locate())) for path in installed}
    if "sortedcontainers/__init__.py" not in content:
        raise FileNotFoundError("sortedcontainers lists no files: install it with pip")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as written:
        for name, path in sorted(content.items()):
            written.writestr(zipfile.ZipInfo(name, BEFORE_ALL_OTHERS), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def build(folder: Path, pyodide_from: Path | None = None) -> Path:
    """Write the page into `folder`, which is made anew, and give its index.html.

    `pyodide_from`: a folder with Pyodide's files; None for those of the installed package. Raises
    `pyodide.NoPyodide` when they are not there, and FileExistsError for a folder that holds something else than this
    page; then nothing is written.
    """
    core, own = pyodide.files(pyodide_from), archive()
    if folder.exists():
        if any(folder.iterdir()) and not (folder / ARCHIVE).exists():
            raise FileExistsError(f"{folder} holds something else than this page: name a new folder, or an empty one")
        shutil.rmtree(folder)
    shutil.copytree(PAGE, folder)
    (folder / ARCHIVE).write_bytes(own)
    (folder / "pyodide").mkdir()
    for name, content in core.items():
        (folder / "pyodide" / name).write_bytes(content)
    return folder / "index.html"
