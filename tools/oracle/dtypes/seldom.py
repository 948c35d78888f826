"""Asks the oracle of dtypes that few kernels take, eight-bit floats and unsigned whole numbers, and writes
simgpu/data/seldom_dtypes.json.

`python -m tools.oracle.dtypes.seldom`: two minutes. The calls are PyTorch's samples in its ordinary dtypes, with all
their tensors in another one; the rules are made as those of the other dtypes are (fit.py).
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import torch

from simgpu.checks import dtypes
from simgpu.checks.scalar_types import SELDOM, legacy_name, name
from tools.oracle.dtypes import fit, variants
from tools.oracle.dtypes.__main__ import _asked, _judged, _worker, _written
from tools.oracle.dtypes.calls import all_tensors

ASKED = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")
OF_EACH = 7  # calls of an operator
UNCERTAIN = "Promotion for "  # which torch.promote_types says by itself


def _empty(call: dict) -> dict:
    made = json.loads(json.dumps(call))
    for one in all_tensors(made):
        one[0] = [0] * len(one[0])
    return made


def calls(found: list[dict], skip: int = 0) -> list[tuple[str, dict]]:
    """(kind, call): the calls as they were found, in each of the asked dtypes, and of empty tensors. `skip`: how many
    calls of an operator are passed over, for others than the rules are made from."""
    made: dict[str, tuple[str, dict]] = {}
    for found_of in variants._by_operator(found).values():
        full = sorted((one for one in found_of if not any(0 in t[0] for t in all_tensors(one))), key=variants._length)
        mains = [variants._main(one) for one in full]
        main = next((one for one in ("float32", "int64", "bool") if one in mains), None)
        chosen = [one for one in full if main and variants._main(one) == main][skip : skip + OF_EACH]
        for call in chosen:
            others = [variants._all_in(call, main, dtype) for dtype in ASKED]
            for one in (call, *others):
                made.setdefault(json.dumps(one), ("same", one))
        for call in chosen[:1] if not skip else []:
            for dtype in ASKED:
                one = _empty(variants._all_in(call, main, dtype))
                made.setdefault(json.dumps(one), ("empty", one))
    return list(made.values())


def prepare() -> None:
    """Lets `fit` know how errors name these dtypes."""
    for one in SELDOM:
        spelled = str(one).removeprefix("torch.")
        fit._FORMS[spelled] = {"at": name(one), "legacy": legacy_name(one), "py": spelled}
    names = {text for forms in fit._FORMS.values() for text in forms.values()}
    joined = "|".join(map(fit.re.escape, sorted(names, key=len, reverse=True)))
    fit._ANY = fit.re.compile(r"(?<![\w:<])(?:at::)?(?:" + joined + r")(?![\w>])")


def main() -> None:
    """Asks, makes the table, judges it by calls that it was not made from."""
    prepare()
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        _worker("capture-few", str(folder / "found.jsonl"))
        found = [json.loads(line) for line in (folder / "found.jsonl").read_text().splitlines()]
        known = calls(found)
        asked = defaultdict(list)
        for (kind, call), answer in zip(known, _asked(folder, [call for _, call in known]), strict=True):
            if not answer.startswith(f"RuntimeError: {UNCERTAIN}"):
                asked[call["op"]].append(fit.Asked(kind, call, answer))
        table = fit.table(asked)
        dtypes.SELDOM_FILE.write_text(_written(table), encoding="utf-8")
        print(f"{len(known)} calls of {len(asked)} operators; rules of {len(table)}")
        others = [call for _, call in calls(found, skip=OF_EACH)]
        theirs, ours = _asked(folder, others), _asked(folder, others, simulated=True)
    print(f"{len(others)} other calls:", dict(_judged(theirs, ours)))
    told = Counter((call["op"], one[:100], here[:100]) for call, one, here in zip(others, theirs, ours, strict=True)
                   if one != here and "ok" in (one, here) and not here.startswith("NoValue"))  # fmt: skip
    for (operator, one, here), count in told.most_common(60):
        print(count, operator, "|", one, "|", here)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
