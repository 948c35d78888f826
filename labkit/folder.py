"""Finds files of the course's folder that chapters read, from wherever a chapter runs."""

from importlib import metadata
from pathlib import Path


def course_file(name: str) -> Path:
    """Returns the path of a file or folder of the course; `name` is relative to its root ("notebooks/data/alice.txt").

    It searches the clone that contains labkit, the clone around the current folder, and the files installed with the
    package simgpu (`share/simgpu`, see pyproject.toml). Raises FileNotFoundError, which says what to do, if none of
    them has the file.
    """
    here = Path.cwd()
    clones = (folder for folder in (Path(__file__).parents[1], here, *here.parents) if (folder / "course.py").is_file())
    for found in (*(folder / name for folder in clones), *_installed(name)):
        if found.exists():
            return found
    raise FileNotFoundError(
        f"this cell reads {name} of the course's folder, which is not installed with the package: "
        "run the notebook in a clone of the course"
    )


def _installed(name: str) -> list[Path]:
    try:
        files = metadata.files("simgpu") or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(one.locate())) for one in files if one.as_posix().endswith(f"share/simgpu/{name}")]
