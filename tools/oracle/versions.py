"""What the stored snippets do under another Python, or another torch, where that is not what is stored of them.

Up to Python 3.10 the arguments of a call live until it returns, so that PyTorch itself gives memory back in another
order; another torch has other operators below the same name. `python -m tools.oracle.versions --torch 2.11.0`, in the
Python in question, asks the oracle and keeps the answers that are others: `cases.load` then gives them there. The
environment of that Python has neither triton nor NVIDIA's libraries, which torch would load in the stubs' place.
"""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Iterator

from tools.oracle import cases, run

WRITTEN = ("rare_paths", "single_operators")
"""Families that are written out in tests/oracle/test_<family>.py, as CASES."""


def written() -> Iterator[tuple[str, list[cases.Case]]]:
    """Those families, with their cases, as torch `run.DEFAULT_VERSION` answers them."""
    for family in WRITTEN:
        of_tests = runpy.run_path(str(run.ROOT / "tests" / "oracle" / f"test_{family}.py"))
        yield family, [cases.Case(*case, None) for case in of_tests["CASES"]]


def twice(found: list[cases.Case], gpu: str, version: str) -> list[cases.Case]:
    """Those that the oracle answers so again: where autograd's thread lets go of something at the very end, its free is
    now and then not in the history any more."""
    again = cases.on_oracle([case.code for case in found], gpu, version) if found else []
    return [case for case, other in zip(found, again, strict=True) if case == other]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.oracle.versions")
    parser.add_argument("--torch", default=run.DEFAULT_VERSION)
    version = parser.parse_args().torch
    kept, asked = {}, 0
    for family, stored in (*((family, cases.stored(family)) for family in cases.families()), *written()):
        for gpu in sorted({case.gpu for case in stored}):
            mine = [case for case in stored if case.gpu == gpu]
            found = cases.on_oracle([case.code for case in mine], gpu, version)
            others = [new for old, new in zip(mine, found, strict=True) if new != old]
            others = twice(others, gpu, version)
            kept.setdefault(family, []).extend(others)
            asked += len(mine)
            print(f"{family}, {gpu}: {len(others)} of {len(mine)} are others", flush=True)
    cases.save_others(version, {family: others for family, others in kept.items() if others}, asked)


if __name__ == "__main__":
    main()
