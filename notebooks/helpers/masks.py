"""Reads what ways to mask attention allocate, as PyTorch's own CUDA code does without a GPU.

`python -m tools.flex_attention` measures it and writes notebooks/data/masks.yaml.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import yaml

from labkit import MiB

STORED = Path(__file__).parents[1] / "data" / "masks.yaml"
COLUMNS = {"mask": "mask", "making the mask": "making it", "forward adds": "saved", "peak": "peak"}
"""The stored fields that the table shows, and the names of its columns."""


def table(tokens: int = 4096) -> pd.DataFrame:
    """Returns, for documents of 32 tokens, the stored sizes in MiB of each way at one length of the packed sequence.

    They are the mask, the peak while it is made, what forward saves in addition to q, k, v and mask, and the peak of
    forward and backward above these. Raises ValueError if no way was measured at that length.
    """
    data = yaml.safe_load(STORED.read_text(encoding="utf-8"))
    rows = {row["way"]: row for row in data["rows"] if row["tokens"] == tokens}
    if not rows:
        known = sorted({row["tokens"] for row in data["rows"]})
        raise ValueError(f"no way was measured with {tokens} tokens; there are {known}")
    sizes = {way: [row[field] / MiB for field in COLUMNS] for way, row in rows.items()}
    table = pd.DataFrame(sizes, index=list(COLUMNS.values())).T
    return table.round(3).rename_axis(f"{data['gpu']}, {tokens:,} tokens (MiB)")
