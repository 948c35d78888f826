"""Search in Chinese without a dictionary: by single characters and by pairs of them, in pages and in what is asked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import snowballstemmer
from sphinx.search import SearchLanguage

HAN = "\u3400-\u4dbf\u4e00-\u9fff"
RUN = re.compile(rf"[{HAN}]+|[^\W{HAN}]+")


class SearchChinese(SearchLanguage):
    """In the place of Sphinx's own, which wants jieba's dictionary for pages, and does not cut what is asked."""

    lang = "zh"
    language_name = "English"  # Sphinx calls the stemmer by it; that of the words in Latin letters is the English one
    js_stemmer_rawcode = "english-stemmer.js"
    js_splitter_code = r"""
var splitQuery = (query) =>
  (query.match(/\p{Script=Han}+|(?:(?!\p{Script=Han})[\p{L}\p{N}_])+/gu) || []).flatMap((run) =>
    /\p{Script=Han}/u.test(run) && run.length > 2
      ? [...run].slice(1).map((character, at) => [...run][at] + character)
      : [run]);
"""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.stemmer = snowballstemmer.stemmer("english")

    def split(self, input: str) -> list[str]:
        return [piece for run in RUN.findall(input) for piece in pieces(run)]

    def stem(self, word: str) -> str:
        return self.stemmer.stemWord(word.lower())


def pieces(run: str) -> Iterator[str]:
    """A word in another script whole; of a run of Chinese characters each one, and each pair of neighbours."""
    if not re.match(f"[{HAN}]", run):
        yield run
        return
    yield from run
    yield from map("".join, itertools.pairwise(run))
