"""The summary table of the course as a page: `python -m tools.techniques` writes docs/techniques.md.

Every row is one that a chapter has made from its own measurements and that its executed notebook keeps. The table of
times is made of the rows of docs/exactness.json that hold a technique in somebody else's measurement.
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

Every row was measured by a chapter of the course, and is collected from its executed notebook by
`python -m tools.techniques`; none was typed. *Peak* is the peak of allocated memory without and with the technique,
*step time* the time with it over the time without. Where the last column says *simulated*, the memory is exact and the
time an estimate ([chapter 24](../notebooks/24_how_exact_is_this.ipynb) says how good it is).

First find what peaks ([chapter 23b](../notebooks/23b_which_technique_first.ipynb)): a technique that acts elsewhere
saves nothing.

"""
# What has the peak that a technique lowers, by the beginning of its name: the first that fits.
PEAKS = {
    "Activations peak": (
        *("smaller batch", "gradient accumulation", "accumulation", "gradient checkpointing", "checkpoints"),
        *("selective checkpointing", "autocast", "bf16 autocast", "one fused kernel", "torch.compile's cut"),
        *("batch norm recomputed", "activations on the CPU"),
    ),
    "Attention's map, the padding or the logits peak": ("fused attention", "bucketing", "the useful words", "loss in"),
    "The optimizer's step peaks, or its states": ("AdamW", "Adafactor", "1-bit Adam", "optimizer on the CPU"),
    "Many GPUs, and what each of them need not hold": ("FSDP",),
    "The parameters or the inputs peak": ("parameters on the CPU", "images sent as uint8"),
}
TIMES = """\
## Recorded times beside simulated ones

Step time with the technique over the time without it, as others recorded it and as the clock has it for the same model
and GPU (from [exactness.json](exactness.json), rung 7).

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
    """What has the peak that the technique lowers; ValueError for a method that nobody has sorted in."""
    for title, beginnings in PEAKS.items():
        if technique.method.startswith(beginnings):
            return title
    raise ValueError(f"{technique.method!r} is under no title of PEAKS in tools/techniques.py; add its name there")


def _markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body]) + "\n"


def times() -> str:
    """The table of recorded and simulated times of the same technique."""
    results = json.loads(EXACTNESS.read_text(encoding="utf-8"))["results"]
    measures = {name: found for one in results if one["rung"] == 7 for name, *_, found in one["items"]}
    rows = [["method", "on", "recorded", "simulated"]]
    for method, pairs in RECORDED.items():
        for without, with_it in pairs:
            said = [
                f"× {measures[with_it][f'{kind} (s)'] / measures[without][f'{kind} (s)']:.2f}"
                for kind in ("published", "simulated")
            ]
            rows.append([method, without.rpartition(": ")[0], *said])
    return _markdown(rows)


def page(notebooks: Path = ROOT / "notebooks") -> str:
    """The page as Markdown, from the notebooks of a folder. Raises FileNotFoundError if it has none."""
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
