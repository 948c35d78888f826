"""Builds the site, into site/ or a FOLDER: `python course.py site`, or `python -m tools.site`.

    python -m tools.site                        then open site/index.html
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
from tools.site.stage import HERE, ROOT, Stage

SOURCES = ROOT / "build" / "site"


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status is Sphinx's, or 1 for a dead link."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__, formatter_class=form)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ROOT / "site", help="where the site goes (default: site)"
    )
    parser.add_argument("--strict", action="store_true", help="fail for a warning or a dead link")
    parser.add_argument("--work", type=Path, default=SOURCES, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        from sphinx.cmd.build import main as sphinx
    except ImportError as error:
        sys.exit(f"the site needs the extra docs ({error}): python course.py setup, or pip install -e .[docs]")
    try:
        Stage(options.work / "source").run()
    except ValueError as error:
        sys.exit(f"the site: {error}")
    strict = ["-W", "--keep-going", "-n"] if options.strict else []
    given = ["-q", "-j", "auto", "-c", str(HERE), "-d", str(options.work / "doctrees"), *strict]
    built = options.work / "html"  # myst-nb writes beside it, too
    failed = sphinx([*given, "-b", "html", str(options.work / "source"), str(built)])
    if failed:
        return failed
    put(built, options.folder)
    try:
        build.build(options.folder / "playground")
    except pyodide.NoPyodide as error:
        print(f"the site has no playground: {error}")
    dead = check.dead_links(options.folder)
    print(*dead, sep="\n", end="\n" if dead else "")
    print(f"{options.folder / 'index.html'}: {len(list(options.folder.rglob('*.html')))} pages, {len(dead)} dead links")
    return int(bool(dead) and options.strict)


def put(built: Path, folder: Path) -> None:
    """The built site into `folder`, which is made anew. Ends the program for a folder that holds something else."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "objects.inv").exists():
        sys.exit(f"{folder} holds something else than a site: name a new folder, or an empty one")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(built, folder, ignore=shutil.ignore_patterns(".buildinfo*"))


if __name__ == "__main__":
    sys.exit(main())
