"""What labkit wants to be installed: all that is missing is said in one line, before anything else is imported."""

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


check()
