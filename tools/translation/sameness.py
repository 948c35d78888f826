"""What a translation must share with the English: code, links, formulas, placeholders, numbers, emphasis, its place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from babel.messages.catalog import Catalog

from tools.translation import messages

NUMBER = re.compile(r"(?<![A-Za-z\d])\d+(?:[.,_]\d+)*")
NAME = re.compile(r"[A-Za-z]+\d+")  # A100, float16: a translation may say it once more where the English says "it"
COUNTED = {"strong_open": "bold", "em_open": "italic", "hardbreak": "a line's end", "s_open": "struck out"}


def problems(english: str, translation: str) -> list[str]:
    """What is wrong with a translation, a line each: what the English has and it lacks, or the other way round."""
    ours, theirs = _held(english), _held(translation)
    found = [f"lacks {_times(what, count)}" for what, count in (ours - theirs).items()]
    found += [f"has {_times(what, count)}, which the English has not" for what, count in (theirs - ours).items()]
    if _shape(english) != _shape(translation) or english.count("\n") != translation.count("\n"):
        found.append("begins a list, a heading or a table, or has other lines: it would not stay in its place")
    return found


def of_catalogue(catalogue: Catalog) -> Iterator[tuple[str, str]]:
    """The problems of a catalogue's translations, each after its message; not of fuzzy ones, which nobody sees."""
    for message in catalogue:
        if message.id and message.string and not message.fuzzy:
            yield from ((str(message.id), line) for line in problems(str(message.id), str(message.string)))


def _held(text: str) -> Counter[str]:
    """What must be the same, and how often: each thing by a name that a translator can look for."""
    held = Counter(_counted(text))
    return held + Counter(f"the name {name}" for name in set(NAME.findall(_plain(text))))


def _plain(text: str) -> str:
    return " ".join(token.content for token in messages.inline(text) if token.type == "text")


def _counted(text: str) -> Iterator[str]:
    for token in messages.inline(text):
        if token.type == "code_inline":
            yield f"`{token.content}`"
        elif token.type == "math_inline":
            yield f"${token.content}$"
        elif token.type == "link_open":
            yield f"a link to {token.attrs['href']}"
        elif token.type == "image":
            yield f"the picture {token.attrs['src']}"
        elif token.type == "html_inline":
            yield token.content
        elif token.type == "text":
            plain = messages.PLACEHOLDER.sub("", token.content)
            yield from (f"the number {number}" for number in NUMBER.findall(plain))
        elif token.type in COUNTED:
            yield COUNTED[token.type]
    yield from messages.PLACEHOLDER.findall(text)


def _times(what: str, count: int) -> str:
    return what if count == 1 else f"{what} ({count} times)"


def _shape(text: str) -> list[str]:
    """What the text is on its own: one paragraph, or a list for "1. Words"."""
    return [token.type for token in messages.PARSER.parse(text)]
