"""Writes the lecture of each notebook as reveal.js slides that need no network: `python course.py slides`.

reveal.js comes with the package sphinx-revealjs and is copied beside the slides; formulas are MathML, written when the
slides are made; style and script of tools/slides/static are copied, too. A slide has 1440 × 810: `fit.js`
divides one that is too long between two cells, and joins those that fit on one. It lowers the size of the type where a
slide still needs it, and lets one that is too long even then scroll. `python -m tools.slides.look` measures all of them
in a browser.
"""
