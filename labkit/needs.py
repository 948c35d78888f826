"""What labkit wants to be installed: all that is missing is said in one line, before anything else is imported.

The largest of it is imported here, while Python's collector of garbage rests: it would look through the modules that
have come, again and again, for a tenth of the time, and find nothing.
"""

import gc
from importlib import import_module
from importlib.util import find_spec

PACKAGES = ("torch", "numpy", "pandas", "matplotlib", "tqdm", "pynvml")
CURE = (
    "`python course.py setup` in the course's folder installs it into the environment .venv there; "
    "where the package simgpu is installed, `pip install 'simgpu[course]'` does"
)


def check() -> None:
    """Raises ModuleNotFoundError, with the ways to install them, where packages that labkit imports are missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"labkit needs {', '.join(missing)}: {CURE}", name=missing[0])


def bring(*names: str) -> None:
    """Imports modules; whether garbage is collected afterwards is as before, also where one cannot be imported."""
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
