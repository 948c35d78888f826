"""Draws snippets of families of rules, runs them on the oracle, and compares: `python -m tools.oracle.rules losses`."""

from __future__ import annotations

import argparse
import random

from tools.oracle import cases, rules, run


def compare(family: str, options: argparse.Namespace) -> None:
    """Prints the differences of a family on each GPU; stores its snippets as test data with --keep."""
    count, draw = rules.of(family)
    kept = []
    for number, gpu in enumerate(options.gpu or cases.GPUS):
        rng = random.Random(1000 * options.seed + number)
        recorded = cases.on_oracle([draw(rng) for _ in range(options.count or count)], gpu, options.torch)
        kept += recorded
        different = cases.differences(recorded)
        for text in different[: options.limit]:
            print(text, end="\n\n")
        print(f"{family}, {gpu}: {len(recorded) - len(different)} of {len(recorded)} equal")
    if options.keep:
        made_by = "PyTorch's CUDA host code under stub libraries; no GPU was involved"
        cases.save(family, kept, {"made by": made_by, "torch": options.torch, "seed": options.seed})


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.oracle.rules", description=__doc__)
    parser.add_argument("family", nargs="+", choices=rules.FAMILIES, metavar="FAMILY", help=", ".join(rules.FAMILIES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="snippets a GPU (default: as many as the family says)")
    parser.add_argument("--gpu", action="append", help=f"default: {', '.join(cases.GPUS)}")
    parser.add_argument("--torch", default=run.DEFAULT_VERSION)
    parser.add_argument("--keep", action="store_true", help="as the family's test data")
    parser.add_argument("--limit", type=int, default=10, help="differences shown (default %(default)s)")
    options = parser.parse_args()
    for family in options.family:
        compare(family, options)


if __name__ == "__main__":
    main()
