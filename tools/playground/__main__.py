"""Build the page: `python -m tools.playground FOLDER`, then `python -m http.server --directory FOLDER`."""

import argparse
import sys
from pathlib import Path

from tools.playground.build import build
from tools.playground.pyodide import NoPyodide


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.playground", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the page goes; an older page there is replaced")
    parser.add_argument("--pyodide", type=Path, help="a folder with Pyodide's files; else the installed package's")
    options = parser.parse_args()
    try:
        page = build(options.folder, options.pyodide)
    except (NoPyodide, FileExistsError) as error:
        sys.exit(str(error))
    print(f"{page}: python -m http.server --directory {options.folder}")


if __name__ == "__main__":
    main()
