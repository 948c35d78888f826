"""Write the slides of notebooks into a folder: open one of its .slides.html, also without a network.

    python course.py slides                                   all notebooks, into slides/
    python course.py slides notebooks/03_a_linear_model.ipynb --output-dir=FOLDER

In the slides, S opens the speaker's view, with notes; F is the whole screen, O the overview, ? lists all keys.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.slides import assets, pages

ROOT = Path(__file__).resolve().parents[2]


def write(notebooks: list[Path], folder: Path) -> None:
    """The slides of the notebooks and all that they need. Raises assets.NoReveal."""
    assets.copy(folder)
    for path in notebooks:
        (folder / f"{path.stem}.slides.html").write_text(pages.page(path), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="course.py slides", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebooks", nargs="*", type=Path, help="all without any")
    parser.add_argument("--output-dir", type=Path, default=ROOT / "slides", help="default: slides/")
    options = parser.parse_args(arguments)
    if missing := [str(path) for path in options.notebooks if not path.is_file()]:
        parser.error(f"no such notebook: {', '.join(missing)}")
    notebooks = options.notebooks or sorted((ROOT / "notebooks").glob("*.ipynb"))
    try:
        write(notebooks, options.output_dir)
    except assets.NoReveal as error:
        print(f"course: {error}", file=sys.stderr)
        return 1
    print(f"{len(notebooks)} notebooks: {options.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
