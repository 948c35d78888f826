"""Markdown as messages: a heading, a paragraph, an item of a list or a cell of a table each; and back again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"]).use(dollarmath_plugin)
HARD_BREAK = (" " * 2, "\\")  # a line that ends so is broken there
PIPE = re.compile(r"(?<!\\)\|")
PLACEHOLDER = re.compile(r"%\w+%")  # what a page of the site fills in
DIRECTIVE = ":::"  # begins a paragraph that is MyST's


@dataclass(frozen=True)
class Message:
    """A text to translate, on one line but for hard breaks, and where it stands.

    `kind`: "heading", "paragraph", "list item", "quotation" or "table cell". Its place is the lines `first` to `last`
    (not included), from column `start` of the first of them; a cell ends before column `end`.
    """

    text: str
    kind: str
    first: int
    last: int
    start: int
    end: int | None = None


def split(markdown: str) -> list[Message]:
    """The messages of a text of Markdown, in order. Fenced code, HTML and texts without a word are none."""
    return [message for message in _places(markdown) if has_words(message.text)]


def translated(markdown: str, translate: Callable[[str], str | None]) -> str:
    """The Markdown with the translation of each message in its place; where there is none, it stays to the letter."""
    lines = markdown.split("\n")
    for message in reversed(split(markdown)):
        text = translate(message.text)
        if text:
            lines[message.first : message.last] = _put(lines[message.first], message, text)
    return "\n".join(lines)


def inline(text: str) -> list[Token]:
    """The pieces of a message: text, code, the openings of links and of emphasis, ..."""
    return [child for token in PARSER.parseInline(text) for child in token.children or ()]


def has_words(text: str) -> bool:
    """Whether a message has a letter outside its code, its formulas and its placeholders."""
    if text.startswith(DIRECTIVE):
        return False
    found = "".join(token.content for token in inline(PLACEHOLDER.sub("", text)) if token.type == "text")
    return any(character.isalpha() for character in found)


def _places(markdown: str) -> Iterator[Message]:
    lines = markdown.split("\n")
    within: list[str] = []
    cells: list[tuple[int, int]] = []
    for token in PARSER.parse(markdown):
        if token.type.endswith("_open"):
            within.append(token.type.removesuffix("_open"))
            if token.type == "tr_open" and token.map:
                row = token.map[0]
                cells = _cells(lines[row])
        elif token.type.endswith("_close"):
            within.pop()
        elif token.type == "inline" and within[-1] in ("td", "th"):
            start, end = cells.pop(0)
            yield Message(token.content, "table cell", row, row + 1, start, end)
        elif token.type == "inline" and token.map and token.content:
            first, last = token.map
            start = lines[first].rindex(token.content.split("\n")[0])
            yield Message(_on_one_line(token.content), _kind(within), first, last, start)


def _kind(within: list[str]) -> str:
    if "heading" in within:
        return "heading"
    return {"list_item": "list item", "blockquote": "quotation"}.get(within[-2] if within[1:] else "", "paragraph")


def _on_one_line(content: str) -> str:
    """Without the breaks that are only the source's, which another translator's editor would put elsewhere."""
    text, *others = content.split("\n")
    for line in others:
        text += ("\n" if text.endswith(HARD_BREAK) else " ") + line
    return text


def _cells(row: str) -> list[tuple[int, int]]:
    """Where the cells of a table's row begin and end, without the blanks around them."""
    bars = [hit.start() for hit in PIPE.finditer(row)]
    ends = [*bars, len(row)]
    starts = [0, *(bar + 1 for bar in bars)]
    spans = [(start, end) for start, end in zip(starts, ends, strict=True)]
    if not row[slice(*spans[0])].strip(" >"):
        spans = spans[1:]
    found = []
    for start, end in spans:
        cell = row[start:end]
        begin = start + len(cell) - len(cell.lstrip())
        found.append((begin, begin + len(cell.strip())))
    return found


def _put(line: str, message: Message, text: str) -> list[str]:
    """The lines of a message's place, with another text in it; `line` is the first of them."""
    before = line[: message.start]
    if message.end is not None:
        return [before + PIPE.sub(r"\|", text) + line[message.end :]]
    first, *others = text.split("\n")
    under = re.sub(r"[^>\s]", " ", before)  # as far in as the first, without its mark
    return [before + first, *(under + other for other in others)]
