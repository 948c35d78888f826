"""Changes of simgpu that make no difference to anybody, each with the reason: equivalent.json beside this file."""

import ast
import json
from pathlib import Path

from tools.mutants.changes import Change, of_file

LIST = Path(__file__).with_suffix(".json")


def known(root: Path) -> dict[Change, str]:
    """The changes and their reasons. ValueError if one is not to be found in the code, or in several places.

    Each is told by its file, its function, the text of the line that it begins in, and what becomes of what.
    """
    found: dict[Change, str] = {}
    for entry in json.loads(LIST.read_text(encoding="utf-8")):
        text = (root / entry["file"]).read_text(encoding="utf-8")
        places = [
            one
            for one in of_file(entry["file"], text)
            if (one.old, one.new) == (entry["old"], entry["new"])
            and text.splitlines()[one.line - 1].strip() == entry["line"]
            and _function(text, one.line) == entry["in"]
        ]
        if len(places) != 1:
            raise ValueError(f"{entry['file']}: {entry['old']} -> {entry['new']} is there {len(places)} times")
        found[places[0]] = entry["why"]
    return found


def _function(text: str, line: int) -> str:
    """The name of the innermost function that a line is in, "" if none."""
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name if around else ""
