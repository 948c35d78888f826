"""The site's own words besides its pages: a translation of the site has them in the catalogue of its first page."""

from __future__ import annotations

from tools.site import chapters, notebooks, stage

TITLE = "GPU memory, byte by byte"
"""The site's name, above each page."""

ALL = {
    TITLE: "the site's name",
    stage.CHAPTER: "how a text names a chapter; what is written so becomes a link",
    **dict.fromkeys(chapters.PARTS.values(), "a part of the course"),
    **dict.fromkeys(stage.CAPTIONS, "a group of pages"),
    stage.QUESTION: "the head of a column",
    stage.MINUTES: "the head of a column",
    stage.SECOND: "a note on a chapter",
    stage.SECOND_TO: "a note on a chapter",
    stage.MORE: "before a list of chapters",
    **dict.fromkeys(notebooks.SOLUTION.values(), "folds and unfolds an answer"),
    stage.NOT_TRANSLATED: "a note on a page",
    stage.PARTLY: "a note on a page",
}
"""Each with what it is."""
