"""Reads what one rank of a large run holds over a whole step, and shows it with published figures.

`python -m tools.large_runs` simulates the runs and writes notebooks/data/large_runs.yaml.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from helpers import models
from helpers.plans import Plan
from helpers.throughput import ranges
from labkit import published, simulated_gpu

STORED = Path(__file__).parents[1] / "data" / "large_runs.yaml"
GIB, LENGTH = 2**30, 8192
COLUMNS = ("peak", "reserved", "expandable", "fits in 80 GB", "tokens/s per GPU")
PUBLISHED = {8: "Llama 8B, FSDP 8", 128: "Llama 8B, FSDP 128"}
"""torchtitan's speeds in labkit/published.yaml, by the number of GPUs."""


def rows(part: str) -> list[dict[str, Any]]:
    """Returns the rows of a part, "8B" or "ranks", with sizes in bytes."""
    return yaml.safe_load(STORED.read_text(encoding="utf-8"))[part]


def row(**settings: Any) -> dict[str, Any]:
    """Returns the one row of the 8B with these settings. Raises LookupError if none or several have them."""
    found = [one for one in rows("8B") if all(one[name] == value for name, value in settings.items())]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows have {settings}, one was wanted")
    return found[0]


def fits(one: dict[str, Any]) -> str:
    """Returns whether a row of the 8B fits on an H100 with 80 GB.

    "yes": with the allocator's default settings. "after retries": with these, but it had to empty its cache to serve a
    request. "expandable only": only with expandable segments. "no": with neither.
    """
    retries = one["retries"]["default"]
    if retries is None:
        return "no" if one["retries"]["expandable"] is None else "expandable only"
    return "after retries" if retries else "yes"


def table_8b() -> pd.DataFrame:
    """Returns the table of the 8B, in GiB and with estimated speeds; torchtitan's figures are in the last rows."""
    with simulated_gpu("H100"):  # whose speeds are estimated
        shown = {_name(one): _cells(one) for one in rows("8B")}
    for gpus, name in PUBLISHED.items():
        speed = published.values("training speeds")[name]["figure"]
        reserved = float(published.find("torchtitan-8b", f"{gpus} GPUs").mib) / 1024
        shown[f"torchtitan: selective, 2, {gpus} GPUs"] = ["", f"{reserved:.1f}", "", "96 GB cards", f"{speed:,}"]
    found = pd.DataFrame(shown, index=list(COLUMNS)).T
    return found.rename_axis("checkpointing, sequences (GiB)")


def _name(one: dict[str, Any]) -> str:
    gpus = "" if one["gpus"] == 8 else f", {one['gpus']} GPUs"
    return f"{one['checkpointing']}, {one['sequences']}{', chunked loss' * one['chunked']}{gpus}"


def _cells(one: dict[str, Any]) -> list[str]:
    tokens = one["sequences"] * LENGTH
    speed = ranges(models.Llama, LENGTH, tokens, one["seconds"], attention=32 * 4096)[1]
    return [*(f"{one[name] / GIB:.1f}" for name in COLUMNS[:3]), fits(one), speed]


def table_of_ranks() -> pd.DataFrame:
    """Returns the allocated peak and the reserved memory of whole ranks of chapter 22's plans, in GiB."""
    shown = {}
    for one in rows("ranks"):
        holes = [one[setting] - one["peak"] for setting in ("reserved", "expandable")]
        shown[one["model"], str(Plan(**one["plan"]))] = [one["peak"], one["reserved"], one["expandable"], *holes]
    names = ["peak", "reserved", "expandable", "holes", "holes, expandable"]
    return (pd.DataFrame(shown, index=names).T / GIB).round(1).rename_axis(["", "GiB"])


def holes() -> int:
    """Returns the most bytes by which a whole rank reserves more than its allocated peak, with expandable segments."""
    return max(one["expandable"] - one["peak"] for one in rows("ranks"))
