"""Search in Chinese without a dictionary: by single characters and by pairs of them, in pages and in what is asked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from sphinx.search.en import SearchEnglish

HAN = "\u3400-\u4dbf\u4e00-\u9fff"
RUN = re.compile(rf"[{HAN}]+|[^\W{HAN}]+")


class SearchChinese(SearchEnglish):
    """In the place of Sphinx's own, which wants jieba's dictionary for pages, and does not cut what is asked.

    Words in Latin letters are the English ones, with the stemmer that this version of Sphinx has for them.
    """

    lang = "zh"
    js_splitter_code = r"""
var splitQuery = (query) =>
  (query.match(/\p{Script=Han}+|(?:(?!\p{Script=Han})[\p{L}\p{N}_])+/gu) || []).flatMap((run) =>
    /\p{Script=Han}/u.test(run) && run.length > 2
      ? [...run].slice(1).map((character, at) => [...run][at] + character)
      : [run]);
"""

    def split(self, input: str) -> list[str]:
        return [piece for run in RUN.findall(input) for piece in pieces(run)]


def pieces(run: str) -> Iterator[str]:
    """A word in another script whole; of a run of Chinese characters each one, and each pair of neighbours."""
    if not re.match(f"[{HAN}]", run):
        yield run
        return
    yield from run
    yield from map("".join, itertools.pairwise(run))
