"""Checks that labkit's packages are installed, and lists all that are missing in one line.

It also imports the largest ones, with Python's garbage collector disabled. The collector would search the imported
modules again and again, for a tenth of the import time, and find nothing.
"""

import gc
from importlib import import_module
from importlib.util import find_spec

__all__: list[str] = []  # what labkit itself uses

PACKAGES = ("torch", "numpy", "pandas", "matplotlib", "tqdm", "pynvml", "yaml", "transformers")
CURE = (
    "`python course.py setup` in the course's folder installs it into the environment .venv there; "
    "where the package simgpu is installed, `pip install 'simgpu[course]'` does"
)


def check() -> None:
    """Raises ModuleNotFoundError, which says how to install them, if packages of labkit or its chapters are missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"labkit needs {', '.join(missing)}: {CURE}", name=missing[0])


def bring(*names: str) -> None:
    """Imports modules with the garbage collector disabled, and restores its setting also if an import fails."""
    automatic = gc.isenabled()
    gc.disable()
    try:
        for name in names:
            import_module(name)
    finally:
        if automatic:
            gc.enable()


check()
bring("torch", "pandas", "matplotlib.pyplot")
