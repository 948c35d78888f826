"""The catalogues of translations/: a folder for each language, in it a PO file for each page that is translated."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

from babel.messages import pofile
from babel.messages.catalog import Catalog

from tools.site import stage, words
from tools.translation import messages

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "translations"
HEADER = {"project": words.TITLE, "version": " ", "fuzzy": False, "msgid_bugs_address": " ", "last_translator": " "}
FIRST_PAGE = stage.FIRST_PAGE  # it has the site's own words besides
WIDTH = 100
NOT_OURS = {"python-format", "python-brace-format"}  # babel takes "50 % of" for a format


def languages(folder: Path = FOLDER) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def language(name: str, folder: Path = FOLDER) -> str:
    """The language that is meant: "zh_CN" for "zh_CN", "zh-cn", or "zh" as long as it is the only Chinese.

    Raises ValueError, which lists the languages, for one that is not there.
    """
    there, asked = languages(folder), name.replace("-", "_").lower()
    found = [one for one in there if one.lower() == asked] or [
        one for one in there if one.lower().split("_")[0] == asked
    ]
    if len(found) != 1:
        raise ValueError(f"no language {name!r} in {folder.name}/; there are: {', '.join(there) or 'none'}")
    return found[0]


def pages(root: Path = ROOT) -> list[str]:
    """What can be translated: the notebooks, the pages of docs/ and the site's first page, by path."""
    found = [*sorted((root / "notebooks").glob("*.ipynb")), *sorted((root / "docs").glob("*.md")), root / FIRST_PAGE]
    return [path.relative_to(root).as_posix() for path in found]


def path_of(language: str, page: str, folder: Path = FOLDER) -> Path:
    return (folder / language / page).with_suffix(".po")


def page_of(path: Path, language: str, folder: Path = FOLDER, root: Path = ROOT) -> str:
    """The page that a catalogue is of. Raises ValueError if there is none (any more)."""
    stem = path.relative_to(folder / language).with_suffix("").as_posix()
    for page in (f"{stem}.ipynb", f"{stem}.md"):
        if (root / page).is_file():
            return page
    raise ValueError(f"{path.relative_to(folder.parent).as_posix()} is of a page that is not there: {stem}")


def translated_pages(language: str, folder: Path = FOLDER, root: Path = ROOT) -> list[str]:
    """The pages that have a catalogue in a language."""
    return [page_of(path, language, folder, root) for path in sorted((folder / language).rglob("*.po"))]


def texts(page: str, root: Path = ROOT) -> dict[str, list[str]]:
    """The messages of a page in order, each with where it stands: "cell c00-003, table cell"."""
    content = (root / page).read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    if page.endswith(".ipynb"):
        for cell in json.loads(content)["cells"]:
            if cell["cell_type"] == "markdown":
                for one in messages.split("".join(cell["source"])):
                    found.setdefault(one.text, []).append(f"cell {cell['id']}, {one.kind}")
        return found
    for one in messages.split(content):
        found.setdefault(one.text, []).append(one.kind)
    if page == FIRST_PAGE:
        for text, where in words.ALL.items():
            found.setdefault(text, []).append(where)
    return found


def template(page: str, root: Path = ROOT) -> Catalog:
    """A catalogue of a page's messages, none of them translated."""
    made = Catalog(header_comment=f"# {page}", **HEADER)
    for text, where in texts(page, root).items():
        made.add(text, auto_comments=[*where])
    return made


def read(path: Path, language: str) -> Catalog:
    """A PO file. Raises ValueError for what is none."""
    try:
        return pofile.read_po(io.BytesIO(path.read_bytes()), locale=language, abort_invalid=True)
    except pofile.PoFileError as error:
        raise ValueError(f"{path}: {error}") from None


def content(catalogue: Catalog) -> bytes:
    """A catalogue as its PO file."""
    for message in catalogue:
        message.flags -= NOT_OURS
    out = io.BytesIO()
    pofile.write_po(out, catalogue, width=WIDTH, include_previous=True)
    return out.getvalue()


def updated(language: str, page: str, folder: Path = FOLDER, root: Path = ROOT) -> Catalog:
    """The catalogue of a page with the messages that the page has now; a new one where there is none.

    What has changed a little keeps its translation as "fuzzy"; what has gone stays at the end of the file.
    """
    wanted, path = template(page, root), path_of(language, page, folder)
    if not path.is_file():
        made = Catalog(locale=language, header_comment=f"# {page}, in {language}", language_team=language, **HEADER)
        made.update(wanted)
        return made
    made = read(path, language)
    made.update(wanted, update_creation_date=False)
    return made


def is_up_to_date(language: str, page: str, folder: Path = FOLDER, root: Path = ROOT) -> bool:
    """Whether the catalogue has the messages of the page, in their order."""
    there = [message.id for message in read(path_of(language, page, folder), language) if message.id]
    return there == list(texts(page, root))


def translator(language: str, page: str, folder: Path = FOLDER) -> Callable[[str], str | None]:
    """A function from a message to its translation; None where there is none, or a fuzzy one."""
    path = path_of(language, page, folder)
    known = read(path, language) if path.is_file() else Catalog()

    def translate(text: str) -> str | None:
        message = known.get(text)
        return str(message.string) if message and message.string and not message.fuzzy else None

    return translate
