"""The league table: asks the tools, scores them against the oracle, writes docs/league.* and README.md.

    python -m benchmarks.league                                  # all that are installed; the others keep their rows
    python -m benchmarks.league --tools simulated,memtracker
    python -m benchmarks.league --fresh                          # ask the oracle again, which must be built
    python -m benchmarks.league --page                           # write the page again from docs/league.json

Two of the tools are no dependencies of this project: `pip install torch-kitsune==0.7.0 mlsysim==0.3.0`,
in an environment of its own. A tool that is missing is named, and its stored answers, if there are any, stay.
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from benchmarks.league import oracle, page, processes, score
from benchmarks.league.answer import GPUS, Answer
from benchmarks.league.tools import NAMES
from benchmarks.league.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
FILE, PAGE, README = ROOT / "docs" / "league.json", ROOT / "docs" / "league.md", ROOT / "README.md"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.league", description=__doc__.split("\n")[0])
    parser.add_argument("--tools", default=",".join(NAMES), help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--fresh", action="store_true", help="ask the oracle again and store its figures")
    parser.add_argument("--page", action="store_true", help="ask nobody; write the page from docs/league.json")
    options = parser.parse_args()
    chosen = options.tools.split(",")
    if unknown := set(chosen) - set(NAMES):
        parser.error(f"--tools: no tool {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if options.fresh:
        made_with = {name: version(name).split("+")[0] for name in oracle.VERSIONS}
        oracle.store(processes.asked("oracle", WORKLOADS), made_with)
    before = json.loads(FILE.read_text()) if FILE.exists() else {"tools": {}}
    written(before if options.page else found([] if options.page else chosen, before["tools"]))


def found(chosen: list[str], before: dict) -> dict:
    """What docs/league.json holds: the oracle's figures, and each tool's answers and score."""
    true = oracle.stored()
    tools = {}
    for name in NAMES:
        row = asked(name) if name in chosen else None
        row = row or before.get(name) or _row(name, "", {})
        answers = {one: Answer(**answer) for one, answer in row["answers"].items()}
        tools[name] = row | {"score": score.score(answers, true) if answers else None}
    workloads = {name: answer.peak for name, answer in true.items()}
    return {"format": 1, "versions": oracle.versions(), "gpus": list(GPUS), "workloads": workloads, "tools": tools}


def asked(name: str) -> dict | None:
    """The tool's fresh row; None, said on the terminal, where it is not installed."""
    module = import_module(f"benchmarks.league.tools.{name}")
    number = processes.installed(module.NEEDS)
    if number is None:
        print(f"{module.TITLE}: not installed (pip install {module.NEEDS}); its stored answers are kept")
        return None
    print(f"{module.TITLE} {number}", flush=True)
    return _row(name, number.split("+")[0], processes.asked(name, WORKLOADS))


def _row(name: str, number: str, answers: dict[str, Answer]) -> dict:
    module = import_module(f"benchmarks.league.tools.{name}")
    kept = {one: answer.as_json() | {"seconds": round(answer.seconds, 3)} for one, answer in answers.items()}
    return {"title": module.TITLE, "version": number, "limits": module.LIMITS, "answers": kept}


def written(content: dict) -> None:
    """Write the three files."""
    FILE.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    PAGE.write_text(page.long(content), encoding="utf-8")
    README.write_text(page.readme(README.read_text(encoding="utf-8"), content), encoding="utf-8")


if __name__ == "__main__":
    main()
