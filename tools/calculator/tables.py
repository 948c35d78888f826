"""Computes the tables of the page "Will it fit?" with `simgpu.fit`, and keeps them in docs/calculator.json.

Each cell is a training step on BASE with memory for everything. It stores, in bytes, the peak of allocated memory, the
peak of reserved memory, and the smallest capacity at which a replay of the step's requests succeeds.
"""

import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.calculator.presets import BASE, MODELS, PLANS, SAMPLE, cells

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "calculator.json"
UNLIMITED = 2**50
OLDEST = (8, 0)
"""The oldest compute capability with answers: older GPUs have another attention kernel for bf16."""


def key(cell: tuple) -> str:
    """Returns a cell's key in the file: "gpt2 full 1 512 8"."""
    return " ".join(map(str, cell))


def stored() -> dict:
    """Returns the stored tables: `cells`, `differences` and `ratios`, which are empty if none were computed."""
    if FILE.exists():
        return json.loads(FILE.read_text(encoding="utf-8"))
    return {"cells": {}, "differences": {}, "ratios": {}}


def keep(tables: dict) -> None:
    """Writes the tables, one cell per line."""
    FILE.write_text(_lines(tables) + "\n", encoding="utf-8")


def _lines(tables: dict) -> str:
    parts = []
    for name, content in sorted(tables.items()):
        if not isinstance(content, dict):
            parts.append(f"{json.dumps(name)}: {json.dumps(content)}")
            continue
        rows = ",\n".join(f"{json.dumps(one)}: {json.dumps(what)}" for one, what in content.items())
        parts.append(f"{json.dumps(name)}: {{\n{rows}\n}}")
    return "{" + ",\n".join(parts) + "}"


def measured(cell: tuple, gpu: str = BASE) -> tuple[int, int, int]:
    """Runs a cell's training step, and returns its peaks of allocated and reserved memory and its smallest capacity."""
    import simgpu

    model, plan, gpus, length, batch = cell
    more = {"ranks": gpus} if gpus > 1 else {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (Path(folder) / "config.json").write_text(json.dumps(MODELS[model].config), encoding="utf-8")
        found = simgpu.fit(folder, gpu=gpu, memory=UNLIMITED, batch=batch, length=length, **PLANS[plan].fields, **more)
        return found.peak, found.reserved, found.report.smallest or found.report.nvidia_smi


def same_tokens(known: dict) -> float:
    """Returns the largest share by which capacities differ between cells with equally many tokens, for the models with
    lengths between the computed ones."""
    found: dict[tuple, list[tuple[int, ...]]] = {}
    for model, plan, gpus, length, batch in cells():
        if any(2 * one not in MODELS[model].lengths for one in MODELS[model].lengths[:-1]):
            sizes = known[key((model, plan, gpus, length, batch))]
            found.setdefault((model, plan, gpus, length * batch), []).append(tuple(sizes))
    return max(max(column) / min(column) - 1 for group in found.values() for column in zip(*group, strict=True))


def compute(words: Iterable[str] = (), again: bool = False) -> Iterator[str]:
    """Computes the cells that are missing, or all of them `again`, and yields a line for each.

    `words`: only the cells whose key has one of them.
    """
    import torch

    tables = stored()
    wanted = {key(cell): cell for cell in cells()}
    tables["cells"] = {name: what for name, what in tables["cells"].items() if name in wanted}
    tables |= {"torch": torch.__version__.partition("+")[0], "base": BASE}
    for name, cell in wanted.items():
        if (name in tables["cells"] and not again) or not _named(name, words):
            continue
        tables["cells"][name] = measured(cell)
        tables["cells"] = {one: tables["cells"][one] for one in wanted if one in tables["cells"]}
        keep(tables)
        yield f"{name}: {tables['cells'][name][2] / 2**30:.2f} GiB"
    for gpu in gpus():
        if (gpu in tables["differences"] and not again) or not _named(gpu, words):
            continue
        tables["differences"][gpu] = _difference(gpu, tables["cells"])
        tables["differences"] = {one: tables["differences"][one] for one in gpus() if one in tables["differences"]}
        keep(tables)
        yield f"{gpu}: {tables['differences'][gpu]}"


def _named(name: str, words: Iterable[str]) -> bool:
    words = tuple(words)
    return not words or any(word in name for word in words)


def gpus() -> list[str]:
    """Returns the names of the GPUs that the page knows."""
    from simgpu.gpus.specs import SPECS

    return [name for name, one in SPECS.items() if one.compute_capability >= OLDEST]


def _difference(gpu: str, known: dict) -> tuple[int, int]:
    """Returns the least and the most bytes that a GPU needs more than BASE, over the cells of SAMPLE."""
    found = [measured(cell, gpu)[2] - known[key(cell)][2] for cell in SAMPLE]
    return min(found), max(found)
