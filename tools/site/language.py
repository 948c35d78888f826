"""The site in another language: what its pages are there, from the catalogues of translations/."""

from __future__ import annotations

from collections.abc import Callable

from tools.translation import catalogues, edition, messages


class Language:
    """A language by its code, as the folder in translations/ has it: "zh_CN"."""

    def __init__(self, code: str) -> None:
        self.code = code
        self._own = catalogues.translator(code, catalogues.FIRST_PAGE)

    def say(self, words: str) -> str:
        """The site's own words; in English where they are not translated."""
        return self._own(words) or words

    def markdown(self, text: str, page: str) -> str:
        return messages.translated(text, self.translator(page))

    def notebook(self, english: dict, page: str) -> dict:
        return edition.notebook(english, self.translator(page))

    def translator(self, page: str) -> Callable[[str], str | None]:
        return catalogues.translator(self.code, page)

    def left(self, page: str) -> tuple[int, int]:
        """How many of a page's messages are not translated, and how many there are."""
        if page not in catalogues.pages():
            return 1, 1  # it is written anew for each site, in English
        translate, texts = self.translator(page), catalogues.texts(page)
        return sum(not translate(text) for text in texts), len(texts)
