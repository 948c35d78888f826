"""The summary table of the course as a page: `python -m tools.techniques` writes docs/techniques.md.

Every row is one that a chapter has made from its own measurements and that its executed notebook keeps.
"""

from pathlib import Path

from labkit.techniques import collect

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "techniques.md"
HEAD = """\
# What each technique saved

Every row was measured by a chapter of the course, and is collected from its executed notebook by
`python -m tools.techniques`; none was typed. *Peak* is the peak of allocated memory without and with the technique,
*step time* the time with it over the time without. Where the last column says *simulated*, the memory is exact and the
time an estimate ([chapter 24](../notebooks/24_how_exact_is_this.ipynb) says how good it is).

"""


def page(notebooks: Path = ROOT / "notebooks") -> str:
    """The page as Markdown, from the notebooks of a folder. Raises FileNotFoundError if it has none."""
    table = collect(notebooks).table().reset_index()
    rows = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return HEAD + "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
