"""Redirects from the pages of chapters that were merged into others, so that links from elsewhere still work."""

from __future__ import annotations

from html import escape
from pathlib import Path

from tools.site import links

MOVED = {
    "notebooks/04b_does_backward_double_it": ("notebooks/04_counting_by_hand", "does-the-backward-pass-double-it"),
    "notebooks/24b_where_it_is_weakest": ("notebooks/24_how_exact_is_this", "the-first-weak-rung-nvidia-smi"),
}
"""The page and the section that contain a chapter now, by the path of its former page, without suffixes."""

PAGE = """<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="robots" content="noindex">
<meta http-equiv="refresh" content="0; url={target}">
<title>{title}</title>
</head>
<body><a href="{target}">{title}</a></body>
</html>
"""


def write(app, error: Exception | None) -> None:
    """Writes a page per former chapter, which leads to the section that replaces it, when the site has been built."""
    if error is not None:
        return
    for former, (page, section) in MOVED.items():
        target = f"{links.relative(f'{page}.html', former)}#{section}"
        title = escape(app.env.titles[page].astext())
        text = PAGE.format(language=app.config.language.replace("_", "-"), target=target, title=title)
        Path(app.outdir, f"{former}.html").write_text(text, encoding="utf-8")


def setup(app):
    """Registers `write` with Sphinx."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
