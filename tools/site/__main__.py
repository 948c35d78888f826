"""Builds the site, into site/ or a FOLDER: `python course.py site`, or `python -m tools.site`.

    python -m tools.site                        then open site/index.html
    python -m tools.site --language zh          in Chinese, as far as it is translated, into site-zh_CN/
    python -m tools.site --strict               a warning is an error, every reference is checked, and dead links are
    LABKIT_REPOSITORY=https://host/owner/name   the repository's address, for the buttons that need one

Nothing is executed or fetched; the environment of `python course.py setup` has all it needs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

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
    options = parser.parse_args(argv)
    try:
        from sphinx.cmd.build import main as sphinx
    except ImportError as error:
        sys.exit(f"the site needs the extra docs ({error}): python course.py setup, or pip install -e .[docs]")
    try:
        language = known(options.language)
        name = f"site-{language.code}" if language else "site"
        folder, work = options.folder or ROOT / name, options.work or ROOT / "build" / name
        Stage(work / "source", language=language).run()
    except ValueError as error:
        sys.exit(f"the site: {error}")
    strict = ["-W", "--keep-going", "-n"] if options.strict else []
    strict += ["-D", f"language={language.code}"] if language else []
    given = ["-q", "-j", "auto", "-c", str(HERE), "-d", str(work / "doctrees"), *strict]
    built = work / "html"  # myst-nb writes beside it, too
    failed = sphinx([*given, "-b", "html", str(work / "source"), str(built)])
    if failed:
        return failed
    put(built, folder)
    try:
        build.build(folder / "playground")
    except pyodide.NoPyodide as error:
        print(f"the site has no playground: {error}")
    dead = check.dead_links(folder)
    print(*dead, sep="\n", end="\n" if dead else "")
    print(f"{folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages, {len(dead)} dead links")
    return int(bool(dead) and options.strict)


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
