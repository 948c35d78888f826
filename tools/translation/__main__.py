"""The course in other languages.

    python -m tools.translation update            every catalogue of translations/ as its page is now
    python -m tools.translation update zh 03      a language's catalogue of chapter 03, new where there is none
    python -m tools.translation check             says what is wrong with translations, and how much is translated
    python -m tools.translation build zh          the notebooks in a language: python course.py translate zh
    python -m tools.translation extract FOLDER    every page's messages as .pot files, for a platform or another program

A page is a notebook's number, or the path of a notebook, of a page of docs/, or of tools/site/index.md. The page for
translators is docs/translating.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.translation import catalogues, edition, sameness


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status is 1 where a catalogue is out of date or a translation lacks something."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tools.translation", description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    update = commands.add_parser("update", help="catalogues as their pages are now")
    update.add_argument("language", nargs="?", help="default: every one")
    update.add_argument("pages", nargs="*", metavar="page", help="default: those that have a catalogue")
    commands.add_parser("check", help="what is wrong with translations").add_argument("language", nargs="?")
    build = commands.add_parser("build", help="the notebooks in a language")
    build.add_argument("language")
    build.add_argument("pages", nargs="*", metavar="notebook", help="default: all")
    build.add_argument("--output-dir", type=Path, help="default: notebooks-LANGUAGE")
    extract = commands.add_parser("extract", help="every page's messages as .pot files")
    extract.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    try:
        return COMMANDS[options.command](options)
    except ValueError as error:
        sys.exit(f"translation: {error}")


def command_update(options: argparse.Namespace) -> int:
    if options.pages:
        wanted = [(known_or_new(options.language), page(name)) for name in options.pages]
    else:
        wanted = [(one, name) for one in asked(options.language) for name in catalogues.translated_pages(one)]
    for language, name in wanted:
        path = catalogues.path_of(language, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(catalogues.content(catalogues.updated(language, name)))
        print(f"{short(path)}: {progress(language, name)}")
    return 0


def command_check(options: argparse.Namespace) -> int:
    found = []
    for language in asked(options.language):
        for name in catalogues.translated_pages(language):
            print(f"{short(catalogues.path_of(language, name))}: {progress(language, name)}")
        found += [*outdated(language), *wrong(language)]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(found)} problems")
    return int(bool(found))


def command_build(options: argparse.Namespace) -> int:
    language = catalogues.language(options.language)
    names = [page(name) for name in options.pages] or notebooks()
    others = [name for name in names if not name.endswith(".ipynb")]
    if others:
        raise ValueError(f"no notebook: {', '.join(others)}; an edition has notebooks, and the site has all pages")
    stop_for_problems(language)
    folder = options.output_dir or edition.folder_of(language)
    edition.write(language, folder, names)
    done = [name for name in names if catalogues.path_of(language, name).is_file()]
    print(*(f"{Path(name).name}: {progress(language, name)}" for name in done), sep="\n")
    print(f"{folder}: {len(names)} notebooks, {len(names) - len(done)} of them in English alone")
    return 0


def command_extract(options: argparse.Namespace) -> int:
    for name in catalogues.pages():
        path = (options.folder / name).with_suffix(".pot")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(catalogues.content(catalogues.template(name)))
    print(f"{options.folder}: {len(catalogues.pages())} templates")
    return 0


COMMANDS = {"update": command_update, "check": command_check, "build": command_build, "extract": command_extract}


def outdated(language: str) -> list[str]:
    """The catalogues that do not have their page's messages as they are now, a line each."""
    names = [name for name in catalogues.translated_pages(language) if not catalogues.is_up_to_date(language, name)]
    run = "has changed; run: python -m tools.translation update"
    return [f"{short(catalogues.path_of(language, name))}: {name} {run}" for name in names]


def wrong(language: str) -> list[str]:
    """What is wrong with the translations into a language, a line each, and the message under it."""
    paths = [catalogues.path_of(language, name) for name in catalogues.translated_pages(language)]
    return [
        f"{short(path)}: the translation {line}\n    {text}"
        for path in paths
        for text, line in sameness.of_catalogue(catalogues.read(path, language))
    ]


def stop_for_problems(language: str) -> None:
    """Raises ValueError with what is wrong with a language's translations. One that is out of date does no harm."""
    if found := wrong(language):
        raise ValueError("these translations would not do, and nothing is built:\n" + "\n".join(found))


def progress(language: str, name: str) -> str:
    """How much of a page is translated: "98 of 110 messages, 3 fuzzy"."""
    catalogue, translate = (
        catalogues.read(catalogues.path_of(language, name), language),
        catalogues.translator(language, name),
    )
    texts = list(catalogues.texts(name))
    fuzzy = sum(1 for message in catalogue if message.id and message.fuzzy)
    return f"{sum(map(bool, map(translate, texts)))} of {len(texts)} messages" + (f", {fuzzy} fuzzy" if fuzzy else "")


def notebooks() -> list[str]:
    return [name for name in catalogues.pages() if name.endswith(".ipynb")]


def asked(name: str | None) -> list[str]:
    return catalogues.languages() if name is None else [catalogues.language(name)]


def known_or_new(name: str) -> str:
    """A language that is there, or the code of a new one as babel knows it. Raises ValueError if it does not."""
    from babel import Locale, UnknownLocaleError

    try:
        return catalogues.language(name)
    except ValueError:
        try:
            Locale.parse(name)
        except (UnknownLocaleError, ValueError):
            raise ValueError(f"no language {name!r}: wanted a code such as de, pt_BR or zh_TW") from None
        return name


def page(name: str) -> str:
    """The page that is meant by a number or a path. Raises ValueError for one that is not there."""
    there = catalogues.pages()
    found = [one for one in there if one == name or Path(one).name.partition("_")[0] == name]
    if len(found) != 1:
        raise ValueError(f"no page {name!r}: wanted a chapter's number or a path, e.g. {there[0]}")
    return found[0]


def short(path: Path) -> str:
    return path.relative_to(catalogues.ROOT).as_posix()


if __name__ == "__main__":
    sys.exit(main())
