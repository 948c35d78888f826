"""Writes simgpu/FILES.md, the list of files with the first sentence of each: `python -m tools.map`."""

import ast
from pathlib import Path

SIMGPU = Path(__file__).parents[1] / "simgpu"
PAGE = SIMGPU / "FILES.md"
HEAD = """# The files of `simgpu`

This list is written by `python -m tools.map`, from the first paragraph of each file. [README.md](README.md) is the map.
"""
ROOMS = (
    "allocator",
    "gpus",
    "stub",
    "clock",
    "device",
    "op_info",
    "storage",
    "checks",
    "shapes",
    "autograd",
    "cpu_reference",
    "ops",
    "distributed",
    "dispatch",
    "torch_patches",
    "report",
    "running",
    "fitting",
    "recording",
)


def purpose(path: Path) -> str:
    """The first paragraph of a file's docstring, on one line. ValueError if it has none."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise ValueError(f"{path} does not say what it is: its docstring is missing")
    return " ".join(text.split("\n\n")[0].split())


def table(title: str, files: list[Path]) -> str:
    rows = [f"| `{path.relative_to(SIMGPU).as_posix()}` | {purpose(path)} |" for path in sorted(files)]
    return "\n".join([f"### {title}", "", "| file | what it is |", "|---|---|", *rows, ""])


def page() -> str:
    """Returns the page: the files at the top, then those of each room in the order in which they import one another."""
    found = {path.name for path in SIMGPU.iterdir() if (path / "__init__.py").exists()}
    if found != set(ROOMS):
        raise ValueError(f"tools/map.py and simgpu differ in these folders: {sorted(found ^ set(ROOMS))}")
    tables = [table("At the top", list(SIMGPU.glob("*.py")))]
    tables += [table(f"{room}/", list((SIMGPU / room).rglob("*.py"))) for room in ROOMS]
    return "\n".join([HEAD, *tables])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
