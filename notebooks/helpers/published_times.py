"""Published times: how far the simulated clock is from them, and the figures of published profiler traces."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pandas as pd

from labkit import course_file, published


@dataclass(frozen=True)
class Trace:
    """Holds the figures of a published torch.profiler trace; times are in milliseconds.

    ``total`` is the time from its first event to its last. ``kernels`` and ``copies`` are sums over the GPU's kernels
    and over its copies from the host, which are ``iterations`` copies of ``copied`` bytes each. ``batch`` is the images
    per iteration, or 0 without images. ``file`` is its name in the repository ailzhang/EfficientPyTorch,
    chapter_06_compute/traces.
    """

    name: str
    file: str
    batch: int
    iterations: int
    total: float
    kernels: float
    copies: float
    copied: int
    pinned: bool

    def row(self) -> dict[str, float | str]:
        """Returns the figures that are comparable between traces: per image, per byte, and as shares."""
        return {
            "batch": self.batch,
            "total (ms)": self.total,
            "an image (ms)": self.total / (self.iterations * self.batch) if self.batch else float("nan"),
            "kernels (% of total)": 100 * self.kernels / self.total,
            "copies (% of total)": 100 * self.copies / self.total,
            "copies (GB/s)": self.iterations * self.copied / self.copies / 1e6,
        }


TRACES: tuple[Trace, ...] = tuple(Trace(**row) for row in published.values("traces"))


def traces() -> pd.DataFrame:
    """Returns a table of the published traces, one per row: per image, per byte, and as shares."""
    return pd.DataFrame({trace.name: trace.row() for trace in TRACES}).T


def clock() -> pd.DataFrame:
    """Returns how far the simulated clock is from published times of whole models: per table, models and median error.

    It reads docs/times.md, which ``python -m tools.times`` writes. The medians are of absolute errors, in whole %.
    """
    part = course_file("docs/times.md").read_text(encoding="utf-8").partition("## By table")[2].partition("\n## ")[0]
    rows = [
        [text.strip() for text in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")
    ]
    found = {row[0]: (int(row[1]), round(float(row[2].rstrip("%")))) for row in rows[2:]}
    return pd.DataFrame(found, index=["models", "median error (%)"]).T.rename_axis("published times")


def simulated_seconds(item: str) -> float:
    """Returns the simulated clock's seconds for a published time, by its name on rung 7 of docs/exactness.json.

    Raises ``LookupError`` with the known names.
    """
    results = json.loads(course_file("docs/exactness.json").read_text(encoding="utf-8"))["results"]
    times = {name: more for one in results if one["rung"] == 7 for name, *_, more in one["items"]}
    if "simulated (s)" not in times.get(item, {}):
        raise LookupError(f"no simulated time of {item!r}; there are {', '.join(map(repr, times))}")
    return times[item]["simulated (s)"]
