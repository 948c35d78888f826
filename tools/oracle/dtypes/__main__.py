"""Asks the oracle which dtypes CUDA refuses, writes simgpu/data/kernel_dtypes.json, and keeps calls for the tests.

`python -m tools.oracle.dtypes`: a quarter of an hour. `--keep`: the calls that the table was not made from, as far as
both sides agree on them, go to tests/data/oracle_dtypes.json.gz.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from simgpu.checks import dtypes
from tools.oracle import run
from tools.oracle.dtypes import fit, variants

GPU = "H100"
KEPT = run.ROOT / "tests" / "data" / "oracle_dtypes.json.gz"
EVERY = 3  # of the calls that both sides agree on, one in so many is kept


def _worker(*arguments: str, simulated: bool = False) -> None:
    environ = {**os.environ, "PYTHONPATH": str(run.ROOT)} if simulated else run.environment(run.DEFAULT_VERSION, GPU)
    environ |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tools.oracle.dtypes.worker", *arguments]
    subprocess.run([*command, *(["--simulated", GPU] if simulated else [])], env=environ, cwd=run.ROOT, check=True)


def _asked(folder: Path, calls: list[dict], simulated: bool = False) -> list[str]:
    given, found = folder / "calls.json", folder / "answers.jsonl"
    given.write_text(json.dumps(calls))
    _worker("answer", str(given), str(found), simulated=simulated)
    return [json.loads(line) for line in found.read_text().splitlines()]


def _written(table: dict[str, list[dict]]) -> str:
    texts = sorted({rule["says"] for rules in table.values() for rule in rules})
    rows = {
        operator: [
            [texts.index(one["says"]), one["of"], one["other"], " ".join(one["refused"]), one["empty"], one["scalar"]]
            for one in rules
        ]
        for operator, rules in sorted(table.items())
    }
    lines = [f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in rows.items()]
    texts_too = ",\n".join(map(json.dumps, texts))
    return (
        f'{{"torch": "{run.DEFAULT_VERSION}",\n"texts": [\n{texts_too}\n],\n"operators": {{\n'
        + ",\n".join(lines)
        + "\n}}\n"
    )


def _judged(theirs: list[str], ours: list[str]) -> Counter:
    def verdict(oracle: str, here: str) -> str:
        if oracle in ("make", "crash") or here in ("make", "crash") or fit.OTHER.search(oracle):
            return "set apart"
        if here.startswith(("NotModelledError", "NoValueError")):
            return "refused by name"
        if oracle == here:
            return "both run" if oracle == "ok" else "the same error"
        return "silent" if here == "ok" else "only here" if oracle == "ok" else "in other words"

    return Counter(map(verdict, theirs, ours))


def main() -> None:
    """Asks, makes the table, judges it by calls that it was not made from."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="store calls for the tests")
    parser.add_argument("--judge", action="store_true", help="the table as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _worker("capture", str(folder / "found.jsonl"))
        found = [json.loads(line) for line in (folder / "found.jsonl").read_text().splitlines()]
        if not options.judge:
            known = variants.known(found)
            asked = defaultdict(list)
            for (kind, call), answer in zip(known, _asked(folder, [call for _, call in known]), strict=True):
                asked[call["op"]].append(fit.Asked(kind, call, answer))
            table = fit.table(asked)
            dtypes.FILE.write_text(_written(table), encoding="utf-8")
            print(f"{len(known)} calls of {len(asked)} operators; rules of {len(table)}")
        others = [call for _, call in variants.held_out(found)]
        theirs, ours = _asked(folder, others), _asked(folder, others, simulated=True)
    print(f"{len(others)} other calls:", dict(_judged(theirs, ours)))
    if options.keep:
        same = [(call, one) for call, one, here in zip(others, theirs, ours, strict=True) if one == here]
        kept = json.dumps([{"call": call, "answer": one} for call, one in same[::EVERY]], separators=(",", ":"))
        KEPT.write_bytes(gzip.compress(kept.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
