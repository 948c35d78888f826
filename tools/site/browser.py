"""Looks at a built site in headless Chromium: `python -m tools.site.browser [FOLDER] [--pictures FOLDER]`.

Every page, on a light telephone (420 px) and on a dark wide screen (1440 px): it must load, say nothing on the
console, ask nobody but its own server, show its pictures, keep solutions folded, and not scroll sideways on a
telephone. A search must find chapters. What is wrong is printed, a line each; the status is 1 if anything is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tools import chromium
from tools.site.moved import MOVED
from tools.translation import catalogues

ROOT = Path(__file__).parents[2]
# Beginnings of pages: sources are all of one kind, and a redirect shows the page that it leads to.
LEFT_OUT = ("_static/", "sources/", "genindex", "search.html", *(f"{page}.html" for page in MOVED))
VIEWS = ((420, 900, False), (1440, 1000, True))  # width, height, dark
READY = "document.readyState === 'complete' && document.fonts.status === 'loaded'"
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# What stands out of a page that scrolls sideways, for the message.
WIDE = """[...document.querySelectorAll('article *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1
 && !e.parentElement.closest('pre, table, .math, .cell_output')).slice(0, 2)
 .map(e => e.tagName + '.' + e.className + ' ' + e.textContent.trim().slice(0, 40)).join('; ')"""
BROKEN = (
    """[...document.images].filter(e => e.getClientRects().length && e.complete && !e.naturalWidth).map(e => e.src)"""
)
FOLDED = "[...document.querySelectorAll('details.hide')].filter(e => e.open).length"
THEME = "document.documentElement.dataset.theme"
FOUND = "document.querySelectorAll('#search-results li, .search li').length"


def looked_at(site: Path) -> list[str]:
    """The pages that are opened, by their paths in the site, whose other languages are folders of it."""
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    languages = tuple(f"{one}/{left}" for one in catalogues.languages() for left in LEFT_OUT)
    return [page for page in pages if not page.startswith((*LEFT_OUT, *languages))]


def problems(site: Path, pictures: Path | None = None) -> Iterator[str]:
    """What is wrong with the pages of the site, a line each; pictures of them are written where a folder is given."""
    pages = looked_at(site)
    server = chromium.Server(site)
    try:
        for width, height, dark in VIEWS:
            browser = chromium.Chromium(width, height, dark)
            try:
                for page in pages:
                    yield from (
                        f"{page} at {width} px: {line}" for line in _page(browser, server.url, page, width, dark)
                    )
                    if pictures:
                        pictures.mkdir(parents=True, exist_ok=True)
                        browser.picture(pictures / f"{page.replace('/', '-').removesuffix('.html')}-{width}.png")
                yield from _search(browser, server.url)
            finally:
                browser.close()
    finally:
        server.close()


def _page(browser: chromium.Chromium, url: str, page: str, width: int, dark: bool) -> Iterator[str]:
    browser.said.clear()
    browser.requested.clear()
    browser.open(url + page)
    browser.wait(f"location.href === '{url + page}' && {READY}")
    if browser.evaluate(THEME) != ("dark" if dark else "light"):
        yield f"its theme is {browser.evaluate(THEME)}, and the system prefers {'dark' if dark else 'light'}"
    if width < 600 and (over := browser.evaluate(SIDEWAYS)) > 0:
        yield f"{over} px wider than the screen: {browser.evaluate(WIDE)}"
    if broken := browser.evaluate(BROKEN):
        yield f"pictures that do not show: {broken}"
    if opened := browser.evaluate(FOLDED):
        yield f"{opened} solutions are open"
    yield from (f"the console: {line}" for line in browser.said)
    foreign = [asked for asked in browser.requested if not asked.startswith((url, "data:", "blob:"))]
    yield from (f"asks for {asked}" for asked in foreign)


def _search(browser: chromium.Chromium, url: str) -> Iterator[str]:
    """The search of the site, for a word that many chapters have."""
    browser.open(url + "search.html?q=workspace")
    try:
        browser.wait(f"{FOUND} >= 5")
    except TimeoutError:
        yield f"search.html: {browser.evaluate(FOUND)} pages found for 'workspace'"


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tools.site.browser", description=__doc__, formatter_class=form)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site", help="the built site (default: site)")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="write a picture of every page")
    options = parser.parse_args()
    if not (options.folder / "index.html").is_file():
        sys.exit(f"{options.folder} holds no site: python course.py site")
    if chromium.FOUND is None:
        sys.exit(f"no Chromium: wanted one of {', '.join(chromium.NAMES)} on the PATH")
    found = []
    for line in problems(options.folder, options.pictures):
        print(line, flush=True)
        found.append(line)
    print(f"{len(found)} problems")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
