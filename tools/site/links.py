"""Links of the repository as links of the site, and mentions of chapters as links."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

# What is left as it is: fenced code, code within a line, and, for mentions, whole links, headings and addresses.
CODE = r"(?ms:^ {0,3}(?P<fence>`{3,}|~{3,}).*?^ {0,3}(?P=fence)[`~]*[ \t]*$)|(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)"
LINKED = r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\([^)]*\)|(?m:^#{1,6} .*$)|<https?://[^>]*>"
TARGET = re.compile(r"(?<=\]\()(?P<path>[^)\s#]+)?(?P<anchor>#[^)\s]*)?(?P<title>\s+\"[^\"]*\")?(?=\))")
NUMBER = r"\d\d[a-z]?(?!\w)"
MENTION = re.compile(
    rf"(?P<word>\b[Cc]hapters?)(?P<space>\s)(?P<numbers>{NUMBER}(?:(?:,?\s(?:and|to|or)\s|,\s){NUMBER})*)"
)
# A chapter of somebody's book is none of ours.
FOREIGN = re.compile(r"(?:EfficientPyTorch|[Bb]ooks?|repository)[^.;]{0,12}\Z")


def outside(pattern: str, text: str, change: Callable[[str], str]) -> str:
    """The text, with `change` applied to what lies outside every match of `pattern`."""
    done, at = [], 0
    for hit in re.finditer(pattern, text):
        done += [change(text[at : hit.start()]), hit[0]]
        at = hit.end()
    return "".join([*done, change(text[at:])])


def rewrite(text: str, page: str, resolve: Callable[[str], str | None]) -> str:
    """Markdown with the relative links of `page` (a path in the repository) led to where the site has them.

    `resolve` gets a path in the repository, and gives the path of the page in the site, or None: the link stays. An
    anchor is kept where the page is the file itself.
    """
    folder = PurePosixPath(page).parent

    def target(hit: re.Match) -> str:
        path = hit["path"]
        if not path or "://" in path or path.startswith(("mailto:", "/")):
            return hit[0]
        wanted = os.path.normpath(folder / path).replace(os.sep, "/")
        found = resolve(wanted)
        if found is None:
            return hit[0]
        anchor = hit["anchor"] if found == wanted else None  # what stands for a file has not its headings or lines
        return relative(found, page) + (anchor or "") + (hit["title"] or "")

    return outside(CODE, text, lambda prose: TARGET.sub(target, prose))


def mentions(text: str, page: str, chapters: Mapping[str, str], other: str = "") -> str:
    """Markdown with "chapter 03" as a link, where 03 is one of `chapters` (number to path) and not the page itself.

    `other`: what another language writes for that, with %number% in the place of the number.
    """

    def link(words: str, number: str) -> str:
        path = chapters.get(number)
        return words if path in (None, page) else f"[{words}]({relative(path, page)})"

    def linked(prose: str) -> str:
        def mention(hit: re.Match) -> str:
            if FOREIGN.search(prose[: hit.start()]):
                return hit[0]
            if re.fullmatch(NUMBER, hit["numbers"]):
                return link(hit[0], hit["numbers"])
            numbers = re.sub(NUMBER, lambda number: link(number[0], number[0]), hit["numbers"])
            return hit["word"] + hit["space"] + numbers

        return MENTION.sub(mention, prose)

    text = outside(f"{CODE}|{LINKED}", text, linked)
    if "%number%" not in other:
        return text
    written = re.compile(re.escape(other).replace("%number%", rf"(?P<number>{NUMBER})"))
    return outside(f"{CODE}|{LINKED}", text, lambda prose: written.sub(lambda hit: link(hit[0], hit["number"]), prose))


def relative(path: str, page: str) -> str:
    """The way from one page of the site to a file of it; both are paths from the site's root."""
    return os.path.relpath(path, PurePosixPath(page).parent).replace(os.sep, "/")
