"""Formulas as MathML, made while the site is built: the browser draws them, and no script is fetched."""

from __future__ import annotations

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml


def inline(translator, node) -> None:
    translator.body.append(tex2mathml(node.astext(), as_block=False))
    raise SkipNode


def block(translator, node) -> None:
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise SkipNode


def setup(app) -> dict:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
