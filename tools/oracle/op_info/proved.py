"""Which overloads of ATen are proved: they ran in samples or workloads that are equal, and no difference is theirs.

`python -m tools.oracle proved` writes simgpu/data/operators.json from what `op-info --keep` found.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

from simgpu import unmodeled
from tools.oracle import run
from tools.oracle.build import home
from tools.oracle.op_info import runs

FILE = run.ROOT / "simgpu" / "data" / "operators.json"
PACKAGED = ("aten::", "prims::")  # what programs register by themselves runs as their own code
ENOUGH = 20  # equal operators and workloads in which an overload ran, beyond which a difference is not its own
NODE = re.compile(r"(\w+?)Backward\d*$")


def folder(version: str, gpu: str) -> Path:
    """Where `op-info --keep` leaves what ran and what is to blame, a file for each pass."""
    return home() / "op-info" / version / gpu / "ran"


def keep(rows: list, gpu: str, version: str) -> None:
    """Note what ran in equal samples, and who is to blame for the others, of these rows (`command.Row`)."""
    blamed = _blamed(rows, gpu, version)
    by_part: dict[str, dict] = defaultdict(dict)
    for row in rows:
        ran: set[str] = set()
        for one in row.outcomes:
            if one.verdict == "equal":
                ran |= set(one.operators)
        by_part[row.job.part][row.job.name] = {"ran": sorted(ran), "blamed": blamed.get(row.job, [])}
    folder(version, gpu).mkdir(parents=True, exist_ok=True)
    for part, names in by_part.items():
        path = folder(version, gpu) / f"{part}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | names))


def _blamed(rows: list, gpu: str, version: str) -> dict:
    """Of each job that differs, the overloads whose doing the first difference of its first such sample is."""
    wrong = [(row, next(one for one in row.outcomes if one.verdict == "differs")) for row in rows
             if any(one.verdict == "differs" for one in row.outcomes)]  # fmt: skip
    asked = [(row.job, row.backward, [one.number]) for row, one in wrong if one.at is not None]
    sides = runs.labelled(asked, gpu, version) if asked else ({}, {})
    found = {}
    for row, one in wrong:
        labels = []
        for side in sides:
            facts = next(iter(side.get(row.job, {}).get("samples", ())), {})
            labels += facts.get("labels", ())[one.at : one.at + 1] if one.at is not None else []
        found[row.job] = sorted(blame(labels, one.operators))
    return found


def blame(labels: Iterable[str], ran: Iterable[str]) -> set[str]:
    """Whose doing a difference is, of the overloads that ran in the sample: from the labels ("operator|function|node|
    line") of the event where it begins, on both sides.

    Under a node of autograd it is the node's operator, whose formula it is; else the innermost operator on whose behalf
    memory was taken. Nothing where no overload that ran fits: this sample then proves none, and that is all.
    """
    ran = set(ran)
    for label in labels:
        operator, _, node, _ = label.split("|")
        found = _of_node(node, ran) or {one for name in operator.split("/")[::-1] for one in ran if one in _named(name)}
        if found:
            return found
    return set()


def _of_node(node: str, ran: set[str]) -> set[str]:
    match = NODE.match(node)
    if match is None:
        return set()
    wanted = match[1].lower()
    return {one for one in ran if one.split("::")[1].split(".")[0].replace("_", "") == wanted}


def _named(name: str) -> set[str]:
    """The overloads that C++ calls `name`: "add_Tensor" is "aten::add.Tensor"."""
    parts = [(name[:place], name[place + 1 :]) for place, letter in enumerate(name) if letter == "_" and place]
    return {f"aten::{name}", *(f"aten::{packet}.{overload}" for packet, overload in parts)}


def write(gpus: list[str], version: str, of_workloads: dict[str, Iterable[str]] | None = None) -> dict:
    """Write simgpu/data/operators.json from what was kept of these GPUs, and from what ran in workloads that are equal
    (name -> overloads); what the file has as proved stays so, unless a difference is its own. What was written."""
    proved = set(json.loads(FILE.read_text(encoding="utf-8"))["proved"]) if FILE.exists() else set()
    evidence: Counter[str] = Counter(one for found in (of_workloads or {}).values() for one in found)
    differs: dict[str, str] = {}
    for gpu in gpus:
        for path in sorted(folder(version, gpu).glob("*.json")):
            for name, found in json.loads(path.read_text()).items():
                proved |= set(found["ran"])
                evidence.update(found["ran"])
                for overload in found["blamed"]:
                    differs.setdefault(overload, f"seen in PyTorch's sample of {name} ({path.stem}, {gpu})")
    for overloads in (of_workloads or {}).values():
        proved |= set(overloads)
    differs = {one: where for one, where in differs.items() if evidence[one] < ENOUGH}
    in_libraries = {f"aten::{name}" for names in unmodeled.LIBRARIES.values() for name in names}
    proved = {one for one in proved if one.startswith(PACKAGED) and one.split(".")[0] not in in_libraries}
    content = {
        "torch": version,
        "gpus": sorted({*gpus, "H100"}),
        "proved": sorted(proved - differs.keys()),
        "differs": dict(sorted(differs.items())),
    }
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return content


def workload_operators(names: Iterable[str], gpu: str) -> dict[str, list[str]]:
    """The overloads that each of these workloads (tools/oracle/workloads) runs on the simulated GPU, in this
    process."""
    from simgpu.session import simulated_gpu
    from tools.oracle.op_info.seen import operators_seen
    from tools.oracle.workloads import find

    found = {}
    for name in names:
        with simulated_gpu(gpu), operators_seen() as seen, suppress(torch.OutOfMemoryError):
            find(name)(lambda stage: None)  # some run out of memory: they are about that
        found[name] = sorted(seen)
    return found


def do(options) -> int:
    """Write the file, and say what is in it."""
    from tools.oracle import store
    from tools.oracle.op_info import page

    gpus = options.gpu or sorted(path.parent.name for path in (home() / "op-info" / options.torch).glob("*/ran"))
    if not gpus:
        raise RuntimeError("nothing is kept: python -m tools.oracle op-info --all --keep first")
    more = workload_operators(store.known_equal(gpus[0]), gpus[0]) if options.workloads else {}
    content = write(gpus, options.torch, more)
    page.write()
    print(f"{FILE.name}: {len(content['proved'])} overloads proved, {len(content['differs'])} differ")
    return 0
