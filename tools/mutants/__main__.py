"""Whether the tests notice small changes of the simulated GPU: `python -m tools.mutants --sample 200 --seed 1`.

Each mutant is simgpu with one change: another comparison, operator of arithmetic or constant, `and` for `or`, the
opposite of a condition, a statement or the value of a `return` left out. On it run the tests that run the changed line,
those first that are about its file and quick, until one fails: then the mutant is killed. Which tests run which lines
is found once, by a run of all tests under `coverage`, and kept in .mutants.json; --map finds it anew. The results are
kept in .mutants-results.json; --survivors tries those again that no test noticed, after a test has been written and
`--map --tests tests/unit/simgpu/test_its_file.py` has found what it runs. A change that makes no difference to anybody
is listed in tools/mutants/equivalent.json with the reason, and counted apart.
"""

import argparse
import os
import random
import sys
from pathlib import Path

from tools.mutants import changes, equivalent, lines

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / ".mutants-results.json"


def main() -> int:
    options = parsed()
    if not hasattr(os, "fork"):
        sys.exit("mutants are tried in forked processes, which this system has not")
    if options.map or not (ROOT / lines.MAP).exists():
        lines.make(ROOT, options.tests)
        return 0
    from tools.mutants import trial  # it imports torch, which coverage cannot bear before it starts

    number = 0
    known, results, alike = lines.Map(ROOT), [], equivalent.known(ROOT)
    with trial.copied(ROOT) as tree:
        for number, change in enumerate(sample(options), 1):
            if why := alike.get(change):
                print(f"{number}. {change}\n    makes no difference: {why}", flush=True)
                continue
            tests = within(known.of_lines(change.file, *change.statement), known.seconds, options.seconds)
            tests = [test for test in tests if (ROOT / test.partition("::")[0]).exists()]
            result = trial.tried(change, tree, tests, known.seconds, 60 + 3 * options.seconds) if tests else None
            results.append(result or trial.Result(change, None, 0, 0))
            print(f"{number}. {results[-1]}", flush=True)
            RESULTS.write_text(trial.as_json(results))
    lived = [one for one in results if one.killer is None]
    same = f", and {number - len(results)} that make no difference" if number > len(results) else ""
    print(f"\n{len(results)} mutants, {len(results) - len(lived)} killed, {len(lived)} survived{same}")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=200, metavar="N", help="how many mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: %(default)s)")
    parser.add_argument("--files", nargs="+", metavar="PATH", help="of simgpu, to take mutants of (default: all)")
    parser.add_argument(
        "--seconds", type=float, default=90, help="of tests that a mutant has to survive (default: %(default)s)"
    )
    parser.add_argument("--survivors", action="store_true", help="those of the last run once more")
    parser.add_argument("--map", action="store_true", help="find out which tests run which lines, and end")
    parser.add_argument(
        "--tests", nargs=argparse.REMAINDER, default=[], help="with --map, last: pytest's (default: tests)"
    )
    return parser.parse_args()


def sample(options) -> list[changes.Change]:
    """The changes to be tried."""
    if options.survivors:
        from tools.mutants import trial

        return [changes.found_again(one, (ROOT / one.file).read_text()) for one in trial.survivors(RESULTS.read_text())]
    paths = [ROOT / name for name in options.files] if options.files else sorted((ROOT / "simgpu").rglob("*.py"))
    found = [
        change
        for path in paths
        for change in changes.of_file(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    return random.Random(options.seed).sample(found, min(options.sample, len(found)))


def within(tests: list[str], seconds: dict[str, float], limit: float) -> list[str]:
    """As many of the tests, from the first, as take so many seconds together."""
    chosen, total = [], 0.0
    for test in tests:
        total += seconds[test]
        if chosen and total > limit:
            break
        chosen.append(test)
    return chosen


if __name__ == "__main__":
    sys.exit(main())
