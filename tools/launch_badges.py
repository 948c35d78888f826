"""Writes the cell that runs the course on Colab and Kaggle, and the README's buttons: `python -m tools.launch_badges`.

The buttons need the repository's public address: the entry Repository of `[project.urls]` in pyproject.toml
(tools/site/repository.py). While there is none, none is made up: the README has no buttons, and the cell asks for the
address.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools.site import repository

ROOT = Path(__file__).resolve().parents[1]
PAGE, README = ROOT / "docs" / "elsewhere.md", ROOT / "README.md"
FIRST = "notebooks/00_out_of_memory.ipynb"
FOLDER = "gpu-memory"
UNKNOWN = "THE ADDRESS OF THIS REPOSITORY"
# Installed on Colab (googlecolab/backend-info, pip-freeze.gpu.txt and pip-freeze.txt of 2026-08-19: torch 2.11.0,
# Python 3.13), and on Kaggle, whose image is made from Colab's. Not installed anew: torch and the running kernel stay.
THERE = {"numpy", "torch", "accelerate", "ipykernel", "ipywidgets", "matplotlib", "nbconvert", "pandas", "tqdm"}
THERE |= {"pyyaml", "transformers"}
NOT_NEEDED = {"jupyterlab"}  # they are notebooks' hosts themselves


def missing() -> list[str]:
    """The packages that the course needs and that Colab and Kaggle lack, by name."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lists = re.findall(r"^(?:dependencies|course) = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    needed = {name for part in lists for name in re.findall(r'^\s*"([\w-]+)', part, re.MULTILINE)}
    return sorted(needed - THERE - NOT_NEEDED)


def cell(where: str | None) -> str:
    """The one cell, to be run before a notebook's first."""
    return "\n".join(
        [
            f"!git clone -q --depth 1 {where or UNKNOWN} {FOLDER}",
            f"%pip install -q --no-deps ./{FOLDER}",
            f"%pip install -q {' '.join(missing())}",
            f"%cd -q {FOLDER}/notebooks",
            "%env LABKIT_GPU=A100-80GB",
        ]
    )


def buttons(where: str | None) -> str:
    """The README's buttons, a line of Markdown each; none without an address, and Colab's kind only for GitHub."""
    if where is None or not where.startswith("https://github.com/"):
        return ""
    name = where.removeprefix("https://github.com/")
    colab = f"https://colab.research.google.com/github/{name}/blob/main/{FIRST}"
    links = {
        "Tests": (f"{where}/actions/workflows/cpu.yml/badge.svg", f"{where}/actions/workflows/cpu.yml"),
        "Open in Colab": ("https://colab.research.google.com/assets/colab-badge.svg", colab),
        "Open in Kaggle": (
            "https://kaggle.com/static/images/open-in-kaggle.svg",
            f"https://kaggle.com/kernels/welcome?src={where}/blob/main/{FIRST}",
        ),
        "Open in Binder": (
            "https://mybinder.org/badge_logo.svg",
            f"https://mybinder.org/v2/gh/{name}/main?labpath={FIRST}",
        ),
    }
    return "".join(f"[![{what}]({picture})]({target})\n" for what, (picture, target) in links.items())


def between(text: str, mark: str, new: str) -> str:
    """The text with what stands between the comments `mark` and `end of mark` replaced. ValueError without them."""
    opening, closing = f"<!-- {mark}: written by python -m tools.launch_badges -->\n", f"<!-- end of {mark} -->\n"
    if opening not in text or closing not in text:
        raise ValueError(f"the marks of {mark} are not there: {opening.strip()} and {closing.strip()}")
    before, rest = text.split(opening)
    return before + opening + new + closing + rest.split(closing)[1]


def pages() -> dict[Path, str]:
    """Both pages as they should be."""
    where = repository.url({})  # what is in the repository does not depend on an environment
    page = between(PAGE.read_text(encoding="utf-8"), "cell", f"```\n{cell(where)}\n```\n")
    readme = between(README.read_text(encoding="utf-8"), "buttons", buttons(where))
    return {PAGE: page, README: readme}


def main() -> int:
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
