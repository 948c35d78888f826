"""Writes the lists of files simgpu/FILES.md and tools/README.md, from their docstrings: `python -m tools.map`."""

import ast
from pathlib import Path

TOOLS = Path(__file__).parent
SIMGPU = TOOLS.parent / "simgpu"
PAGE, TOOLS_PAGE = SIMGPU / "FILES.md", TOOLS / "README.md"
HEAD = """# The files of `simgpu`

This list is written by `python -m tools.map`, from the first paragraph of each file. [README.md](README.md) is the map.
"""
OF_TOOLS = """# The tools

These programs make and check the course and `simgpu`; nothing that readers use imports them. Run them from the
repository's folder. This list is written by `python -m tools.map`.
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
    return "\n".join([f"## {title}", "", "| file | what it is |", "|---|---|", *rows, ""])


def page() -> str:
    """Returns the page: the files at the top, then those of each room in the order in which they import one another."""
    found = {path.name for path in SIMGPU.iterdir() if (path / "__init__.py").exists()}
    if found != set(ROOMS):
        raise ValueError(f"tools/map.py and simgpu differ in these folders: {sorted(found ^ set(ROOMS))}")
    tables = [table("At the top", list(SIMGPU.glob("*.py")))]
    tables += [table(f"{room}/", list((SIMGPU / room).rglob("*.py"))) for room in ROOMS]
    return "\n".join([HEAD, *tables])


def tools() -> str:
    """Returns the page of tools: a line for each module and package, the modules first."""
    found = [one for one in sorted(TOOLS.glob("*.py")) if one.name != "__init__.py"]
    found += sorted(TOOLS.glob("*/__init__.py"))
    names = [one.parent.name + "/" if one.name == "__init__.py" else one.name for one in found]
    rows = [f"| [{name}]({name}) | {purpose(one)} |" for name, one in zip(names, found, strict=True)]
    return "\n".join([OF_TOOLS, "| tool | what it does |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    TOOLS_PAGE.write_text(tools(), encoding="utf-8")
