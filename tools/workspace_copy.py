"""Makes the reader's own copy of the notebooks: outputs cleared, answers collapsed, the reader's changes kept.

`course.py open` makes it, in `mine/`. Solutions are collapsed, and so is the code that answers a guess. A notebook that
the reader has not touched follows the course's. Where the reader has changed one and the course has a new version, the
new version is written next to it, and a line says so.

Only the standard library is used here, as in tools/course.py.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

NOTE = ".made.json"  # of each notebook: what was written last, and of which version of the course's
NOT_COPIED = (".ipynb_checkpoints", "__pycache__", "helpers")
COLLAPSED = {"outputs_hidden": True, "source_hidden": True}
ANSWER = {"source_hidden": True}  # its output is what the reader runs the cell for
GUESS = re.compile(r"^(guess_\w+) = ", re.MULTILINE)


def refresh(course: Path, mine: Path) -> list[str]:
    """Bring the copy in `mine` up to the notebooks in `course`; what the reader should know, a line each.

    The data of the notebooks come along. Their helpers don't: labkit finds the course's own, which are never out of
    date. Raises OSError where the folder cannot be written.
    """
    mine.mkdir(parents=True, exist_ok=True)
    note = _noted(mine / NOTE)
    said = []
    for source in sorted(course.glob("*.ipynb")):
        wanted = cleared(json.loads(source.read_text(encoding="utf-8")))
        said += _place(mine, source.stem, wanted, note)
    for folder in (path for path in course.iterdir() if path.is_dir() and path.name not in NOT_COPIED):
        shutil.copytree(folder, mine / folder.name, dirs_exist_ok=True, copy_function=_copy_if_absent)
    (mine / NOTE).write_text(json.dumps(note, indent=1, sort_keys=True), encoding="utf-8")
    return said


def cleared(notebook: dict) -> dict:
    """Returns the notebook without outputs and counts, its solutions and the answers to its guesses collapsed."""
    notebook = copy.deepcopy(notebook)
    for cell in _answers(notebook["cells"]):
        cell["metadata"]["jupyter"] = dict(ANSWER)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
            if "solution" in cell["metadata"].get("tags", []):
                cell["metadata"]["jupyter"] = dict(COLLAPSED)
    notebook["metadata"].pop("widgets", None)
    return notebook


def _answers(cells: list[dict]) -> list[dict]:
    """Returns the code cells below each guess, up to the one that compares it, without the cells that ask."""
    sources = ["".join(cell["source"]) if cell["cell_type"] == "code" else "" for cell in cells]
    found = []
    for asked, text in enumerate(sources):
        for name in GUESS.findall(text):
            compares = re.compile(rf"\bguess={name}\b")
            last = next((i for i in range(asked + 1, len(cells)) if compares.search(sources[i])), asked)
            found += [cells[i] for i in range(asked + 1, last + 1) if sources[i] and not GUESS.search(sources[i])]
    return found


def _place(mine: Path, stem: str, wanted: dict, note: dict) -> Iterator[str]:
    """Write the notebook if it may be written; a new version beside it if the reader has changed theirs."""
    noted = note.get(stem, {})
    version = content(wanted)
    target = mine / f"{stem}.ipynb"
    if not target.exists() or _read(target) == noted.get("written"):
        if not target.exists() or noted.get("version") != version:
            _write(target, wanted)
        note[stem] = {"written": version, "version": version}
        return
    if noted.get("version") == version:
        return
    if _read(target) == version:  # the reader took the new version over by hand
        note[stem] = {"written": version, "version": version}
        return
    beside = _free_name(mine, stem, noted)
    _write(beside, wanted)
    note[stem] = {"written": noted.get("written"), "version": version, "beside": beside.name, "beside_written": version}
    yield f"{target.name} has your changes and stays as it is; the course's new version is {beside.name}"


def _free_name(mine: Path, stem: str, noted: dict) -> Path:
    """The name for a new version: the last one's if the reader left that alone, else one that is not taken."""
    last = mine / noted.get("beside", "")
    if noted.get("beside") and last.exists() and _read(last) == noted.get("beside_written"):
        return last
    names = [f"{stem}.new.ipynb", *(f"{stem}.new{number}.ipynb" for number in range(2, 1000))]
    return next(mine / name for name in names if not (mine / name).exists())


def content(notebook: dict) -> str:
    """A fingerprint of what a reader can change: sources and outputs, not the metadata that an editor writes."""
    cells = [
        [cell["cell_type"], "".join(cell["source"]), cell.get("outputs", []), cell.get("attachments", {})]
        for cell in notebook["cells"]
    ]
    return hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> str:
    """The fingerprint of a notebook; of something that cannot be read one that no notebook has."""
    try:
        return content(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError):
        return "unreadable, so it is the reader's"


def _write(path: Path, notebook: dict) -> None:
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _noted(path: Path) -> dict:
    """What an earlier call noted; nothing if it cannot be read, and then every notebook counts as the reader's."""
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _copy_if_absent(source: str, target: str) -> None:
    if not Path(target).exists():
        shutil.copy2(source, target)
