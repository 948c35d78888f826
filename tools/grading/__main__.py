"""Grade a reader's copy of a notebook: points for each exercise, judged by the course's own cells.

    python course.py grade mine/03_a_linear_model.ipynb
    python course.py grade mine/03_a_linear_model.ipynb --json points.json      for a class; - is the standard output
    python course.py grade mine/03_a_linear_model.ipynb --pass 60               status 1 below 60 % of the points

An exercise gives 1 point; an answer in parts gives the share that is right. A cell that raises gets 0, and the rest
still runs. Status: 0 if it could be graded, 1 if it is below --pass, 2 if it could not be graded, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tools.grading import report
from tools.grading.grade import grade
from tools.grading.submission import CannotBeGraded, Submission

ROOT = Path(__file__).resolve().parents[2]
COURSE_GPU = "A100-80GB"  # the stored outputs' GPU
SECONDS = 600


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="course.py grade", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebook", type=Path, help="the reader's copy of one of the course's notebooks")
    parser.add_argument("--json", metavar="FILE", help="write the points as JSON; - writes them instead of the text")
    parser.add_argument(
        "--pass", dest="wanted", type=percent, metavar="N", help="the share that is required, in percent"
    )
    parser.add_argument("--seconds", type=seconds, default=SECONDS, help="what a cell may take (default: %(default)s)")
    options = parser.parse_args(arguments)
    gpu = os.environ.get("LABKIT_GPU") or COURSE_GPU
    try:
        submission = Submission(options.notebook, ROOT / "notebooks")
    except CannotBeGraded as error:
        print(f"course: {error}", file=sys.stderr)
        return 2
    results = grade(submission, gpu, ROOT, options.seconds)
    written = json.dumps(report.as_json(submission, results, gpu), indent=1, ensure_ascii=False)
    if options.json == "-":
        print(written)
    else:
        print(*report.as_text(submission, results, gpu), sep="\n")
    if options.json and options.json != "-":
        try:
            Path(options.json).write_text(written + "\n", encoding="utf-8")
        except OSError as error:
            print(f"course: the points cannot be written: {error}", file=sys.stderr)
            return 2
    return int(options.wanted is not None and 100 * report.share(results) < options.wanted)


def percent(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"wanted is a share in percent, from 0 to 100; given: {text}")
    return value


def seconds(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"wanted is a number of seconds from 1 on; given: {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
