"""`python -m tools.real_gpus` writes docs/real_gpus.md from docs/real_gpus.json.

`python -m tools.real_gpus run CHECKOUT RECORD ...` first runs records of KellerJordan/modded-nanogpt on the stub engine
and stores their figures. CHECKOUT is a checkout of that repository, and RECORD a folder of its records:
track_1_short/2025-05-24_StableTorch. If TORCHINDUCTOR_SIZE_ASSERTS is in the environment, this is noted too.
`--torch 2.15.0` runs them on a different version of PyTorch, and `--in FOLDER` keeps programs and reports there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from tools.real_gpus import page, records

SOURCE = "KellerJordan/modded-nanogpt"


def run(checkout: Path, names: list[str], folder: Path, torch: str | None) -> int:
    """Runs records and stores what they need; returns 1 if one of them did not run to its end."""
    failed = 0
    for name in names:
        report = records.run(checkout, name, folder, torch)
        if not report.completed:
            print(f"{name}: {report.ended}", flush=True)
            failed = 1
            continue
        found = page.stored()
        old = next((row for row in found["rows"] if row["record"] == name), {})
        real = asdict(records.published(checkout, name))
        here = {"torch": report.torch, "allocated": report.peak, "reserved": report.reserved}
        row = {"source": SOURCE, "record": name, "published": real, "here": here}
        row |= {"settings": settings} if (settings := records.settings()) else {}
        row |= {"why": old["why"]} if "here" in old and "why" in old else {}
        found["rows"] = sorted([one for one in found["rows"] if one is not old] + [row], key=lambda one: one["record"])
        page.FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{name}: published {real['allocated']} / {real['reserved']} MiB, here {here}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.real_gpus", description=__doc__)
    commands = parser.add_subparsers(dest="command")
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
    page.PAGE.write_text(page.page(), encoding="utf-8")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
