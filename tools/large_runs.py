"""Writes notebooks/data/large_runs.yaml, what chapters 19b and 22 show of whole ranks: `python -m tools.large_runs`.

Part "8B" has Llama 3.1 8B under FSDP2. The cells of chapter 19b with the tag "large-runs" define the model and its
step, and are executed for each row. Part "ranks" has ranks of chapter 22's plans, by `helpers.ranks`. All figures are
those of the simulated H100. A run needs some seconds, and all of them need some minutes.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
import yaml

ROOT = Path(__file__).parents[1]
STORED = ROOT / "notebooks" / "data" / "large_runs.yaml"
CHAPTER = "19b_how_large_a_model"
TAG = "large-runs"
HEAD = "# Written by python -m tools.large_runs: one rank on a simulated H100, in bytes and seconds of its clock.\n"
PLENTY = 400 * 2**30
"""Bytes of a card on which nothing is returned to the device before it is needed again."""

EIGHT = [(how, sequences, 8, False) for how in ("no", "selective", "full") for sequences in (1, 2)]
EIGHT += [("selective", 2, 8, True), ("selective", 2, 128, False)]
"""Checkpointing, sequences per GPU, GPUs, and whether the loss is computed in chunks."""


def cells(path: Path) -> str:
    """Returns the source of a notebook's code cells that have the tag, in order. Raises ValueError if none has."""
    notebook = nbformat.read(path, as_version=4)
    found = [cell.source for cell in notebook.cells if TAG in cell.metadata.get("tags", [])]
    if not found:
        raise ValueError(f"{path.name} has no cell with the tag {TAG!r}")
    return "\n".join(found)


def chapter() -> dict[str, Any]:
    """Returns the names that the tagged cells of chapter 19b define."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cells(ROOT / "notebooks" / f"{CHAPTER}.ipynb"), CHAPTER, "exec"), names)
    return names


def of_8b(names: dict[str, Any], how: str, sequences: int, gpus: int, chunked: bool) -> dict[str, Any]:
    """Returns a row of the 8B: bytes and seconds with plenty of memory, and the allocator's retries on 80 GB.

    how: "no", "selective" or "full" checkpointing. sequences: per GPU. chunked: whether the loss is computed in chunks.
    """
    kind = names["ChunkedLlama"] if chunked else names["models"].Llama
    options = {"sequences": sequences, "checkpointing": how, "kind": kind}

    def run(expandable: bool, memory: int | None) -> Any:
        return names["titan"](32, gpus, expandable=expandable, memory=memory, **options)

    step, time, _ = run(False, PLENTY)
    return {
        "checkpointing": how,
        "sequences": sequences,
        "gpus": gpus,
        "chunked": chunked,
        "peak": step.peak,
        "reserved": step.reserved,
        "expandable": run(True, PLENTY)[0].reserved,
        "seconds": round(time.seconds, 4),
        "retries": {setting: _retries(run, value) for setting, value in (("default", False), ("expandable", True))},
    }


def _retries(run: Any, expandable: bool) -> int | None:
    """Returns how often the allocator of an H100 with 80 GB emptied its cache; None if that was not enough."""
    import torch

    try:
        return run(expandable, None)[2]
    except torch.OutOfMemoryError:
        return None


def of_a_rank(name: str, plan: Any, layers: int) -> dict[str, Any]:
    """Returns a row of chapter 22, in bytes: the first rank of a plan, with all `layers` of its stage."""
    from helpers import ranks
    from helpers.plans import MODELS

    default, expandable = (ranks.simulate(MODELS[name], plan, layers, expandable=value) for value in (False, True))
    row = {"model": name, "plan": asdict(plan), "layers": layers, "peak": default.peak, "reserved": default.reserved}
    return row | {"expandable": expandable.reserved}


def measured() -> dict[str, Any]:
    """Returns all that is stored: the version of torch, and the rows of both parts."""
    import torch

    from helpers.plans import MODELS, Plan, layers_of

    titan = Plan(pipeline=8, shards=8, tensor=8, sequences=4, micro_batches=8)
    whole = [("70B", Plan(replicas=64 // n, shards=n, micro_batches=8), 80) for n in (64, 32)]
    whole.append(("405B", titan, layers_of(MODELS["405B"].layers, 8)[0]))
    names = chapter()
    found = {"torch": version("torch").partition("+")[0], "8B": [of_8b(names, *one) for one in EIGHT]}
    torch.backends.cuda.enable_cudnn_sdp(False)  # as chapter 22 does
    return found | {"ranks": [of_a_rank(*one) for one in whole]}


def main() -> None:
    """Simulates all runs, and writes their figures to STORED in place of the old ones."""
    sys.path.insert(0, str(ROOT / "notebooks"))
    warnings.simplefilter("ignore")  # about what is not modelled, and that simulated tensors have no values
    STORED.write_text(HEAD + yaml.safe_dump(measured(), sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    main()
