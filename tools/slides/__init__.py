"""Writes the lecture of each notebook as reveal.js slides that need no network: `python course.py slides`.

reveal.js comes with the package sphinx-revealjs and is copied beside the slides; formulas are MathML, written when the
slides are made; style and script of tools/slides/static are copied, too. A slide has 1440 × 810: `fit.js` lowers the
size of the type where a slide needs it, and lets one that is still too long scroll. `python -m tools.slides.look`
measures all of them in a browser.
"""
