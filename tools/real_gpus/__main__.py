"""`python -m tools.real_gpus` writes docs/real_gpus.md from docs/real_gpus.json.

`python -m tools.real_gpus survey CHECKOUT` first notes which records of KellerJordan/modded-nanogpt there are, and what
those lack that cannot be run. CHECKOUT is a checkout of that repository. `python -m tools.real_gpus run CHECKOUT
RECORD ...` runs records on the stub engine and stores their figures, or how they ended. RECORD is a folder:
track_1_short/2025-05-24_StableTorch. Each runs on the release of the torch that its log names, which must be installed
(`simgpu engine install --torch 2.8.0`), or with `--torch 2.15.0` on that one. `--in FOLDER` keeps programs and reports
there. If TORCHINDUCTOR_SIZE_ASSERTS is in the environment, this is noted too. With MOCK_COMPLETION=sync the figures are
stored as the upper bound of an earlier run.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tools.real_gpus import page, records

SOURCE = "KellerJordan/modded-nanogpt"


def survey(checkout: Path) -> None:
    """Stores how many records there are and what they lack, and a row for each that can be run."""
    found = page.stored()
    lacks = records.survey(checkout)
    found["sources"][SOURCE]["records"] = len(lacks)
    found["sources"][SOURCE]["lacking"] = dict(Counter(why for why in lacks.values() if why).most_common())
    old = {row["record"]: row for row in found["rows"]}
    wanted = [name for name, why in lacks.items() if not why or "here" in old.get(name, {})]
    rows = [_row(checkout, name) | {k: v for k, v in old.get(name, {}).items() if k != "published"} for name in wanted]
    found["rows"] = sorted(rows, key=lambda row: row["record"])
    page.store(found)


def _row(checkout: Path, name: str) -> dict:
    return {"source": SOURCE, "record": name, "published": asdict(records.published(checkout, name))}


def run(checkout: Path, names: list[str], folder: Path, torch: str | None) -> int:
    """Runs records and stores what they need; returns 1 if one of them did not run to its end."""
    failed = 0
    for name in names:
        report = records.run(checkout, name, folder, torch)
        here = {"torch": report.torch, "allocated": report.peak, "reserved": report.reserved}
        if printed := records.printed(folder, name):
            here["printed"] = printed
        found = page.stored()
        old = next((row for row in found["rows"] if row["record"] == name), {})
        row = _row(checkout, name)
        settings = {"settings": text} if (text := records.settings()) else {}
        if not report.completed:
            failed = 1
            row = {**row, **settings, "failed": report.ended.splitlines()[0], "tried": report.torch}
            if "here" in old:
                row = old  # figures are kept
        elif records.late():
            if old.get("here", {}).get("torch") != report.torch:
                raise ValueError(f"{name} has no figures on torch {report.torch} whose upper bound this could be")
            row = old | {"upper": here}
        else:
            row |= {"here": here, **settings}
            row |= {"why": old["why"]} if old.get("here", {}).get("torch") == report.torch and "why" in old else {}
        found["rows"] = sorted([one for one in found["rows"] if one is not old] + [row], key=lambda one: one["record"])
        page.store(found)
        print(f"{name}: published {row['published']}, here {here}, {report.ended}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.real_gpus", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    looking = commands.add_parser("survey", help="note which records there are, and what those lack that cannot run")
    looking.add_argument("checkout", type=Path)
    running = commands.add_parser("run", help="run records, and store their figures")
    running.add_argument("checkout", type=Path)
    running.add_argument("record", nargs="+")
    running.add_argument("--torch", metavar="VERSION")
    running.add_argument("--in", dest="folder", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    failed = 0
    if arguments.command == "run":
        with tempfile.TemporaryDirectory() as scratch:
            folder = (arguments.folder or Path(scratch)).resolve()
            failed = run(arguments.checkout.resolve(), arguments.record, folder, arguments.torch)
    elif arguments.command == "survey":
        survey(arguments.checkout.resolve())
    page.PAGE.write_text(page.page(), encoding="utf-8")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
