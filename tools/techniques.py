"""Writes docs/techniques.md, the summary table of the course: `python -m tools.techniques`.

Each row comes from the measurements of a chapter, whose executed notebook stores it. The table of times consists of
the rows of docs/exactness.json that contain a published measurement of a technique.
"""

from __future__ import annotations

import json
from pathlib import Path

from labkit.techniques import Technique, collect

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "techniques.md"
EXACTNESS = ROOT / "docs" / "exactness.json"
HEAD = """\
# What each technique saved

A chapter of the course measured every row, and `python -m tools.techniques` collects the rows from the executed
notebooks, so none of them was typed. A training step has two peaks of allocated memory, and the larger one decides:

- *peak of backward* is the peak of forward and backward alone, without and with the technique;
- *peak of the step* includes the optimizer's step.

A technique for activations can lower the first column a lot and the second one much less, because AdamW's step then
becomes the peak. Where a chapter measured one peak only, the first column says *not separate*. *Step time* is the time
with the technique divided by the time without it. Where the last column says *simulated*, the memory is simulated and
the time is an estimate ([chapter 24](../notebooks/24_how_exact_is_this.ipynb) shows how good both are).

Before you choose, find out what peaks ([chapter 23b](../notebooks/23b_which_technique_first.ipynb)), because a
technique that acts elsewhere saves nothing.

"""
# What is largest at the peak that a technique lowers, by the beginning of its name. The first match counts.
PEAKS = {
    "Activations peak": (
        *("smaller batch", "gradient accumulation", "accumulation", "gradient checkpointing", "checkpoints"),
        *("selective checkpointing", "autocast", "bf16 autocast", "one fused kernel", "torch.compile's cut"),
        *("batch norm recomputed", "activations on the CPU"),
    ),
    "Attention scores, padding or logits peak": ("fused attention", "bucketing", "the useful", "loss in"),
    "The optimizer's step peaks, or its states": (
        *("AdamW", "Adafactor", "1-bit Adam", "optimizer on the CPU", "states on the CPU"),
    ),
    "Many GPUs, and what each of them need not store": ("FSDP",),
    "The parameters or the inputs peak": ("parameters on the CPU", "images sent as uint8"),
}
TIMES = """\
## Published times and simulated ones

The step time with the technique divided by the time without it, as published and as simulated for the same model and
GPU (from [exactness.json](exactness.json), rung 7).

"""
BERT, LARGE = "bert-large, 512 samples, V100: ", "GPT-2 large, 1024 samples, H100: "
RECORDED = {
    "gradient accumulation": [
        (BERT + "batch 4", BERT + "accumulation 4 × 1"),
        (LARGE + "batch 32", LARGE + "accumulation × 2"),
    ],
    "gradient checkpointing": [
        (BERT + "accumulation 4 × 1", BERT + "accumulation and checkpointing"),
        (LARGE + "accumulation × 2", LARGE + "and checkpointing"),
    ],
    "fp16, for fp32": [(BERT + "batch 4", BERT + "fp16")],
    "Adafactor, for AdamW": [(BERT + "batch 4", BERT + "Adafactor")],
    "AdamW in a loop, for all at once": [(LARGE + "and checkpointing", LARGE + "and for-loop optimizer")],
}


def what_peaks(technique: Technique) -> str:
    """Return what is largest at the peak that the technique lowers. Raises ValueError for an unknown method."""
    for title, beginnings in PEAKS.items():
        if technique.method.startswith(beginnings):
            return title
    raise ValueError(f"{technique.method!r} is under no title of PEAKS in tools/techniques.py; add its name there")


def _markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body]) + "\n"


def times() -> str:
    """Return the table of published and simulated times of each technique."""
    results = json.loads(EXACTNESS.read_text(encoding="utf-8"))["results"]
    measures = {name: found for one in results if one["rung"] == 7 for name, *_, found in one["items"]}
    rows = [["method", "on", "published", "simulated"]]
    for method, pairs in RECORDED.items():
        for without, with_it in pairs:
            said = [
                f"× {measures[with_it][f'{kind} (s)'] / measures[without][f'{kind} (s)']:.2f}"
                for kind in ("published", "simulated")
            ]
            rows.append([method, without.rpartition(": ")[0], *said])
    return _markdown(rows)


def page(notebooks: Path = ROOT / "notebooks") -> str:
    """Return the page as Markdown, from the notebooks of a folder. Raises FileNotFoundError if it has none."""
    found = collect(notebooks)
    table = found.table().reset_index()
    titles = [what_peaks(technique) for technique in found.rows]
    parts = [HEAD]
    for title in PEAKS:
        rows = table[[one == title for one in titles]].to_numpy().tolist()
        parts += [f"## {title}\n\n" + _markdown([list(table.columns), *rows]) + "\n"] if rows else []
    return "".join(parts) + TIMES + times()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
