"""Notebooks in another language. Only Markdown is translated: code, outputs, metadata and ids are the English ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

from tools.translation import catalogues, messages


def notebook(english: dict, translate: Callable[[str], str | None]) -> dict:
    """The notebook with what `translate` knows translated; the one given stays as it is."""
    made = copy.deepcopy(english)
    for cell in made["cells"]:
        if cell["cell_type"] == "markdown":
            source = messages.translated("".join(cell["source"]), translate)
            cell["source"] = source.splitlines(keepends=True)
    return made


def content(language: str, page: str) -> str:
    """The file of a notebook (its path in the repository) in a language, written as the English one is."""
    english = json.loads((catalogues.ROOT / page).read_text(encoding="utf-8"))
    made = notebook(english, catalogues.translator(language, page))
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def folder_of(language: str) -> Path:
    """Where the edition of a language lies: beside notebooks/, so that links of notebooks lead to the same places."""
    return catalogues.ROOT / f"notebooks-{language}"


def write(language: str, folder: Path, pages: list[str]) -> None:
    """Notebooks of an edition into `folder`: translated as far as they are, the rest in English."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages:
        (folder / Path(page).name).write_text(content(language, page), encoding="utf-8")
