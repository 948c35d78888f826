"""Lays the sources of the site into a folder, from which Sphinx builds it.

The folder is laid out as the repository, so that a page's path is its file's. Only what has changed is written, so that
Sphinx reads only that anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tools.site import chapters, cite, exactness, links, notebooks, pictures, repository, tables

if TYPE_CHECKING:
    from tools.site.language import Language

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
# The pages beside the chapters, by the title under which they stand. A page of docs/ that is named nowhere stands under
# the last. `glossary`, `exactness` and `cite` need not be files: see `_written`.
CAPTIONS = {
    "Use it": [
        *("docs/will_it_fit.md", "docs/report.md", "docs/report_json.md", "docs/instrument.md", "docs/elsewhere.md"),
        *("docs/techniques.md", "docs/glossary.md"),
    ],
    "How exact is it?": [
        *("docs/exactness.md", "docs/league.md", "docs/operators.md", "docs/model_zoo.md", "docs/times.md"),
        "docs/time_bias.md",
        *("docs/real_gpus.md", "docs/compiled_programs.md", "docs/oracle.md", "recordings/README.md"),
    ],
    "Teach it, take part": [
        *("docs/teachers.md", "docs/syllabi.md", *(f"docs/notes_part_{part}.md" for part in range(1, 6))),
        *("CONTRIBUTING.md", "simgpu/README.md", "simgpu/FILES.md", "docs/cite.md"),
    ],
}
# What stands on pages besides what is in files; tools/site/words.py lists it for translators.
CHAPTER = "chapter %number%"
SECOND = "A second lesson, which may be skipped."
SECOND_TO = "A second lesson to [chapter %number%](%page%), which may be skipped."
MORE = "More on this, which may be skipped:"
QUESTION, MINUTES = "the question", "minutes"
NOT_TRANSLATED = "This page has not been translated yet."
PARTLY = "Parts of this page have not been translated yet."
FIRST_PAGE = "tools/site/index.md"
INSTEAD = {"README.md": "index.md", "docs/exactness.json": "docs/exactness.md"}  # what stands for a file
SOURCES = "sources"  # the folder of the pages that show a file
LARGEST = 100_000  # bytes of a file that is shown; a larger one can be downloaded
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".sh": "bash",
    ".c": "c",
}


class Stage:
    """One staging of the site into `folder`; `wanted` are the files that belong to it, by path in the site.

    `language`: the other language that the site is in, if it is.
    """

    def __init__(self, folder: Path, root: Path = ROOT, language: Language | None = None) -> None:
        self.folder, self.root, self.language = folder, root, language
        self.say = language.say if language else str
        self.address = repository.url(project=root / "pyproject.toml")
        self.chapters = [self._titled(one) for one in chapters.find(root / "notebooks")]
        self.numbers = {one.key: f"notebooks/{one.path.name}" for one in self.chapters}
        self.wanted: set[str] = set()
        self.shown: set[str] = set()  # files and folders of the repository that need a page of their own
        self.captions = self._captions()
        self.pages = {page for pages in self.captions.values() for page in pages} | set(self.numbers.values())

    def run(self) -> None:
        """Write everything, and remove what an earlier staging left."""
        for one in self.chapters:
            self._chapter(one)
        drawn = self.folder / "docs" / "pictures"
        for page in sorted(self.pages - set(self.numbers.values())):
            text = self._written(page, drawn)
            text = self._in_language(pictures.into(text, PurePosixPath(page).stem, drawn), page)
            self._write(page, self._text(text, page))
        self.wanted |= {path.relative_to(self.folder).as_posix() for path in drawn.glob("*.svg")}
        self._write("index.md", self._text(self._index(), "index.md"))
        self._copy("docs/three-linear.png")
        done: set[str] = set()
        while self.shown - done:
            path = min(self.shown - done)
            self._source(path)
            done.add(path)
        self._remove_others()

    def resolve(self, path: str) -> str | None:
        """Where the site has a file or folder of the repository; None for one that is not there."""
        path = INSTEAD.get(path, path)
        if path in self.pages or path == "index.md":
            return path
        there = self.root / path
        if there.is_file() and (there.stat().st_size > LARGEST or there.suffix in (".png", ".svg", ".gz")):
            self._copy(path)
            return path
        if there.exists():
            self.shown.add(path)
            return _shown_at(path)
        return None

    def _captions(self) -> dict[str, list[str]]:
        """CAPTIONS with the pages that are there, and the pages of docs/ that nobody has named."""
        made = ("docs/exactness.md", "docs/cite.md")
        found = {
            title: [p for p in pages if p in made or (self.root / p).is_file()] for title, pages in CAPTIONS.items()
        }
        named = {page for pages in CAPTIONS.values() for page in pages}
        others = [path.relative_to(self.root).as_posix() for path in sorted((self.root / "docs").glob("*.md"))]
        found[list(found)[-1]] += [page for page in others if page not in named]
        return found

    def _titled(self, one: chapters.Chapter) -> chapters.Chapter:
        """A chapter with its heading in the site's language."""
        translate = self.language.translator(f"notebooks/{one.path.name}") if self.language else str
        return replace(one, title=translate(one.title) or one.title)

    def _note(self, page: str) -> str:
        """What a page of another language says of itself where it is in English, in whole or in part."""
        left, of = self.language.left(page) if self.language else (0, 0)
        return f":::{{note}}\n{self.say(NOT_TRANSLATED if left == of else PARTLY)}\n:::" if left else ""

    def _in_language(self, text: str, page: str) -> str:
        """A page of Markdown in the site's language, its note under its heading."""
        if self.language is None:
            return text
        heading, after, rest = self.language.markdown(text, page).partition("\n")
        note = self._note(page)
        return f"{heading}\n\n{note}\n{rest}" if note else heading + after + rest

    def _text(self, text: str, page: str) -> str:
        other = self.say(CHAPTER) if self.language else ""
        return links.mentions(links.rewrite(text, page, self.resolve), page, self.numbers, other)

    def _chapter(self, one: chapters.Chapter) -> None:
        """A notebook; a main chapter has its second lessons under it, and says so at its end."""
        page = f"notebooks/{one.path.name}"
        english = json.loads(one.path.read_text(encoding="utf-8"))
        shown = self.language.notebook(english, page) if self.language else english
        made = notebooks.page(shown, lambda text: self._text(text, page), self.say)
        lessons = [other for other in self.chapters if other.second and other.number == one.number]
        if one.second:
            main = self.numbers.get(f"{one.number:02}")
            text = self.say(SECOND_TO if main else SECOND).replace("%number%", f"{one.number:02}")
            text = text.replace("%page%", PurePosixPath(main or "").name)
            made["cells"].insert(1, notebooks.markdown(f":::{{note}}\n{text}\n:::"))
        elif lessons:
            names = "\n".join(f"- [{other.title}]({other.path.name})" for other in lessons)
            tree = "\n".join(other.path.stem for other in lessons)
            text = f":::{{seealso}}\n{self.say(MORE)}\n\n{names}\n:::\n\n"
            made["cells"].append(notebooks.markdown(f"{text}```{{toctree}}\n:hidden:\n\n{tree}\n```"))
        if note := self._note(page):
            made["cells"].insert(1, notebooks.markdown(note))
        self._write(page, json.dumps(made, ensure_ascii=False, indent=1))

    def _written(self, page: str, drawn: Path) -> str:
        """A page as it stands in the repository, or as it is written here."""
        if page == "docs/exactness.md":
            return exactness.page(pictures.results(self.root / "docs" / "exactness.json"), drawn)
        if page == "docs/cite.md":
            return cite.page((self.root / "CITATION.cff").read_text(encoding="utf-8"), self.address)
        return (self.root / page).read_text(encoding="utf-8")

    def _index(self) -> str:
        """The first page: index.md of this folder with the chapters by part, and the tree of all pages."""
        listed, trees = [], []
        for part in dict.fromkeys(one.part for one in self.chapters):
            found = [one for one in self.chapters if one.part == part]
            rows = [[one.key, f"[{_question(one)}](notebooks/{one.path.name})", one.minutes] for one in found]
            head = ["", self.say(QUESTION), self.say(MINUTES)]
            listed.append(f"### {self.say(part)}\n\n{tables.write(head, rows)}")
            trees.append(
                _tree(self.say(part), [f"notebooks/{one.path.stem}" for one in found if not self._nested(one)])
            )
        trees += [
            _tree(self.say(title), [page.removesuffix(".md") for page in pages])
            for title, pages in self.captions.items()
        ]
        text = self._in_language((HERE / "index.md").read_text(encoding="utf-8"), FIRST_PAGE)
        hours = sum(one.minutes for one in self.chapters) / 60
        text = text.replace("%chapters%", "\n".join(listed)).replace("%trees%", "\n".join(trees))
        return text.replace("%count%", str(len(self.chapters))).replace("%hours%", f"{hours:.0f}")

    def _nested(self, one: chapters.Chapter) -> bool:
        return one.second and f"{one.number:02}" in self.numbers

    def _source(self, path: str) -> None:
        """A page that shows a file of the repository, or lists a folder."""
        there = self.root / path
        known = f"[In the repository]({self.address}/blob/main/{path})\n\n" if self.address else ""
        head = f"---\norphan: true\nnosearch: true\n---\n\n# `{path}`\n\n{known}"
        page = _shown_at(path)
        if there.is_dir():
            inside = [one for one in sorted(there.iterdir()) if not one.name.startswith((".", "__pycache__"))]
            found = [(one.name, self.resolve(one.relative_to(self.root).as_posix())) for one in inside]
            body = "\n".join(f"- [`{name}`]({links.relative(target, page)})" for name, target in found if target)
        else:
            text = there.read_text(encoding="utf-8")
            fence, end = "`" * 8, "" if text.endswith("\n") else "\n"
            body = f"{fence}{LANGUAGES.get(there.suffix, 'text')}\n{text}{end}{fence}"
        self._write(page, f"{head}{body}\n")

    def _copy(self, path: str) -> None:
        self._write(path, (self.root / path).read_bytes())

    def _write(self, path: str, content: str | bytes) -> None:
        self.wanted.add(path)
        target = self.folder / path
        data = content.encode() if isinstance(content, str) else content
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def _remove_others(self) -> None:
        for path in self._files():
            if path not in self.wanted:
                (self.folder / path).unlink()

    def _files(self) -> Iterator[str]:
        return (path.relative_to(self.folder).as_posix() for path in sorted(self.folder.rglob("*")) if path.is_file())


def _shown_at(path: str) -> str:
    """The page that shows a file; without the dots of hidden files, which GitHub's Pages do not publish."""
    return "/".join([SOURCES, *(part.lstrip(".") for part in path.split("/"))]) + ".md"


def _question(one: chapters.Chapter) -> str:
    return one.title.removeprefix(f"{one.key} · ")


def _tree(caption: str, pages: list[str]) -> str:
    return f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
