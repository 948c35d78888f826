"""The files that slides need, from the package sphinx-revealjs, copied beside them."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

FOLDER = "assets"
STATIC = Path(__file__).parent / "static"
TAKEN = {
    "dist/reset.css": "reset.css",
    "dist/reveal.css": "reveal.css",
    "dist/reveal.js": "reveal.js",
    "plugin/notes/notes.js": "notes.js",
    "LICENSE": "LICENSE-reveal.js",
}


class NoReveal(RuntimeError):
    """The package that carries reveal.js is not installed, or has no such files."""


def copy(slides: Path) -> None:
    """Put reveal.js, its licence, style and script into `slides`/assets. Raises NoReveal."""
    found = importlib.util.find_spec("sphinx_revealjs")
    if found is None or found.origin is None:
        raise NoReveal("reveal.js comes with sphinx-revealjs, which is not installed: pip install 'simgpu[docs]'")
    package = Path(found.origin).parent / "_static" / "revealjs"
    missing = [name for name in TAKEN if not (package / name).is_file()]
    if missing:
        raise NoReveal(f"this version of sphinx-revealjs has no {', '.join(missing)} in {package}")
    target = slides / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    for name, here in TAKEN.items():
        shutil.copyfile(package / name, target / here)
    for path in STATIC.iterdir():
        shutil.copyfile(path, target / path.name)
