"""labkit stays small: what one chapter or a few need belongs to notebooks/helpers or into the chapter's cells."""

import ast
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES, LINES, NAMES = 13, 3000, 45
FILES = sorted((ROOT / "labkit").glob("*.py"))
USERS = [*sorted((ROOT / "notebooks").glob("*.ipynb")), *sorted((ROOT / "notebooks" / "helpers").glob("*.py"))]


def listed(path):
    """The names in a module's `__all__`. Raises StopIteration if it has none."""
    assigned = (
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
    )
    return ast.literal_eval(next(node.value for node in assigned if "__all__" in ast.unparse(node)))


PUBLIC = {path.stem: set(listed(path)) for path in FILES}


def tree_of(path):
    """The code of a module, or of a notebook's cells without their magics."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        lines = "\n".join(cells).splitlines()
        text = "\n".join("" if line.startswith(("%", "!")) else line for line in lines)
    return ast.parse(text)


def used(tree):
    """(module, name) of labkit for each name that the code imports, or reads as an attribute of a module of labkit."""
    modules = {"labkit": "__init__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "labkit":
            module = node.module.removeprefix("labkit").lstrip(".") or "__init__"
            for alias in node.names:
                yield module, alias.name
                if module == "__init__" and alias.name in PUBLIC:
                    modules[alias.asname or alias.name] = alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr


def test_modules_and_lines():
    assert len(FILES) <= MODULES
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES) <= LINES


def test_public_names():
    """Every name that a reader can meet is counted once, where it is defined; labkit itself only passes names on."""
    defined = [name for module, names in PUBLIC.items() if module != "__init__" for name in names]
    assert len(defined) == len(set(defined)) <= NAMES
    assert PUBLIC["__init__"] <= {*defined, *PUBLIC}


@pytest.mark.parametrize("path", USERS, ids=lambda path: path.stem)
def test_chapters_and_helpers_use_public_names(path):
    assert [
        f"{module}.{name}" for module, name in used(tree_of(path)) if name not in PUBLIC[module] | set(PUBLIC)
    ] == []


@pytest.mark.parametrize("path", USERS, ids=lambda path: path.stem)
def test_a_chapter_imports_what_it_uses(path):
    stars = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
    assert stars == []
