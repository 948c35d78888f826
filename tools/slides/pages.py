"""A notebook as a page of slides: what a lecturer shows, formulas as MathML, links to the other chapters' slides."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import nbformat
from docutils.utils.math.latex2mathml import tex2mathml
from jinja2 import pass_context
from nbconvert import SlidesExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from traitlets.config import Config

TEMPLATES = Path(__file__).parent
WIDGET = "application/vnd.jupyter.widget-view+json"
CHAPTER = re.compile(r"\]\((?:\.\./notebooks/)?(\w+)\.ipynb(#[^)]*)?\)")


class Renderer(IPythonRenderer):
    """Markdown whose formulas the browser draws by itself."""

    def inline_math(self, body: str) -> str:
        return tex2mathml(body, as_block=False)

    def block_math(self, body: str) -> str:
        return f'<div class="math">{tex2mathml(body, as_block=True)}</div>'


class Exporter(SlidesExporter):
    """nbconvert's slides, on this folder's template."""

    def default_filters(self):
        yield from super().default_filters()
        yield "markdown2html", markdown


@pass_context
def markdown(context, source: str) -> str:
    """Markdown as HTML, with the attachments of its cell."""
    attachments = context.get("cell", {}).get("attachments", {})
    renderer = Renderer(escape=False, exclude_anchor_links=True, attachments=attachments)
    return MarkdownWithMath(renderer=renderer).render(source)


def page(path: Path) -> str:
    """The slides of a notebook, as HTML."""
    options = Config()
    options.Exporter.template_name = "template"
    options.TemplateExporter.extra_template_basedirs = [str(TEMPLATES)]
    options.TemplateExporter.exclude_input_prompt = True
    options.TemplateExporter.exclude_output_prompt = True
    shown = of_lecturer(nbformat.read(path, as_version=4))
    return Exporter(config=options).from_notebook_node(shown, {"metadata": {"name": path.stem}})[0]


def of_lecturer(notebook):
    """The notebook without what only a test or a running kernel can use. The one given stays as it is."""
    made = copy.deepcopy(notebook)
    made.metadata.pop("widgets", None)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = CHAPTER.sub(r"](\1.slides.html)", cell.source)
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
    return made
