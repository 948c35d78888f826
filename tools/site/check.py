"""Reads a built site and finds links that lead nowhere: files that are not there, and anchors."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The links of a page and the anchors it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)


def dead_links(site: Path) -> list[str]:
    """A line for each link within the site that leads nowhere: "page: link". Links to other sites are not asked."""
    files = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.relative_to(site).parts]
    pages = {path.resolve(): _read(path) for path in files}
    found = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            anchors = pages[target].anchors if target in pages else None
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and anchors is not None and anchor not in anchors):
                found.append(f"{path.relative_to(site.resolve()).as_posix()}: {link}")
    return found


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page
