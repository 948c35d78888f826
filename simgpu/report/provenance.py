"""The command that a report names, without what must not be shown: values of options that hold secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

_SECRET = re.compile(r"token$|secret|passw(or)?d|api[-_]?key|access[-_]?key|credential", re.IGNORECASE)
HIDDEN = "HIDDEN"


def command(arguments: Sequence[object]) -> str:
    """Returns the words of a command as a shell reads them. The value of an option with a name like --hf-token is
    replaced by the word HIDDEN."""
    return shlex.join(_shown([str(one) for one in arguments]))


def _shown(words: list[str]) -> Iterator[str]:
    hidden = False
    for word in words:
        name, equals, _ = word.partition("=")
        if hidden and not word.startswith("-"):
            yield HIDDEN
        elif equals and _SECRET.search(name):
            yield f"{name}={HIDDEN}"
        else:
            yield word
        hidden = not equals and word.startswith("-") and _SECRET.search(word) is not None
