"""Builds the site, into site/ or a FOLDER: `python course.py site`, or `python -m tools.site`.

    python -m tools.site                        then open site/index.html
    python -m tools.site --language zh          in Chinese, as far as it is translated, into site-zh_CN/
    python -m tools.site --all                  in English, and beside it in every other language, into site/zh_CN/ and
                                                so on; each page has buttons that lead to it in the others
    python -m tools.site --strict               a warning is an error, every reference is checked, and dead links are
    LABKIT_REPOSITORY=https://host/owner/name   the repository's address, for the buttons that need one

Nothing is executed or fetched; the environment of `python course.py setup` has all it needs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tools.calculator import build as calculator
from tools.playground import build, pyodide
from tools.site import check
from tools.site.language import Language
from tools.site.stage import HERE, ROOT, Stage
from tools.translation import __main__ as translation
from tools.translation import catalogues


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status is Sphinx's, or 1 for a dead link."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__, formatter_class=form)
    parser.add_argument("folder", nargs="?", type=Path, help="where the site goes (default: site, or site-LANGUAGE)")
    parser.add_argument("--language", help="another language than English: one of translations/")
    parser.add_argument("--strict", action="store_true", help="fail for a warning or a dead link")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--all", action="store_true", help="every language, with buttons from one to the other")
    options = parser.parse_args(argv)
    try:
        if options.all and options.language:
            raise ValueError("--all has every language: leave --language out")
        language = known(options.language)
        others = list(filter(None, map(known, catalogues.languages()))) if options.all else []
        name = f"site-{language.code}" if language else "site"
        folder, work = options.folder or ROOT / name, options.work or ROOT / "build" / name
        names = ["en", *(other.code for other in others)]
        status = site(language, folder, work, options.strict, names)
        for other in others:
            status |= site(other, folder / other.code, work / other.code, options.strict, names)
    except ImportError as error:
        sys.exit(f"the site needs the extra docs ({error}): python course.py setup, or pip install -e .[docs]")
    except ValueError as error:
        sys.exit(f"the site: {error}")
    dead = check.dead_links(folder)
    print(*dead, sep="\n", end="\n" if dead else "")
    print(f"{folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages, {len(dead)} dead links")
    return status or int(bool(dead) and options.strict)


def site(language: Language | None, folder: Path, work: Path, strict: bool, names: list[str]) -> int:
    """One language's site into `folder`, and Sphinx's exit status; `names` are the languages that have one there."""
    from sphinx.cmd.build import main as sphinx

    Stage(work / "source", language=language).run()
    given = ["-W", "--keep-going", "-n"] if strict else []
    given += ["-D", f"language={language.code}"] if language else []
    given += ["-D", f"in_languages={','.join(names)}"] if len(names) > 1 else []
    built = work / "html"  # myst-nb writes beside it, too
    where = ["-c", str(HERE), "-d", str(work / "doctrees"), "-b", "html", str(work / "source"), str(built)]
    if failed := sphinx(["-q", "-j", "auto", *given, *where]):
        return failed
    put(built, folder)
    calculator.build(folder / "will_it_fit")
    try:
        build.build(folder / "playground")
    except pyodide.NoPyodide as error:
        print(f"the site has no playground: {error}")
    return 0


def known(name: str | None) -> Language | None:
    """The language that is asked for. Raises ValueError if it is not there or would not do."""
    if name is None or name == "en":
        return None
    code = catalogues.language(name)
    translation.stop_for_problems(code)
    return Language(code)


def put(built: Path, folder: Path) -> None:
    """The built site into `folder`, which is made anew. Ends the program for a folder that holds something else."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "objects.inv").exists():
        sys.exit(f"{folder} holds something else than a site: name a new folder, or an empty one")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(built, folder, ignore=shutil.ignore_patterns(".buildinfo*"))


if __name__ == "__main__":
    sys.exit(main())
