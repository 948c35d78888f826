"""`python -m tools.times` writes docs/times.md; `python -m tools.times run FOLDER` first runs the models again.

FOLDER holds timm and torchvision, installed beside this environment (`pip install --no-deps --target FOLDER timm
torchvision`). Further words run only the tables or models that have one of them in their names.
"""

import json
import sys
import warnings

from tools.times import page, rows


def run(folder: str, words: list[str]) -> None:
    """Runs rows on the clock and keeps their times."""
    sys.path.append(folder)
    warnings.simplefilter("ignore")
    for row in rows.rows():
        if words and not any(word in row.name for word in words):
            continue
        seconds = rows.measure(row)
        print(
            f"{row.name}: {seconds:.5f} s, published {row.seconds:.5f} s, {seconds / row.seconds - 1:+.1%}", flush=True
        )
        found = page.stored()
        found[row.name] = round(seconds, 7)
        page.FILE.write_text(json.dumps(dict(sorted(found.items())), indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2], sys.argv[3:])
    page.PAGE.write_text(page.page(), encoding="utf-8")
