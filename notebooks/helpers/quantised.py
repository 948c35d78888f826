"""Reads what torchao's float8, 8-bit optimizers and QLoRA allocate, as PyTorch's own CUDA code does without a GPU.

`python -m tools.quantised` measures it and writes notebooks/data/quantised.yaml.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from labkit import MiB, published

STORED = Path(__file__).parents[1] / "data" / "quantised.yaml"
PUBLISHED = {
    "Llama: bfloat16": ("torchtitan-8b-float8", "bfloat16"),
    "Llama: float8": ("torchtitan-8b-float8", "float8"),
    "bert-large: AdamW": ("bert-large", "training"),
    "bert-large: 8-bit Adam": ("bert-large", "8-bit Adam"),
    "Llama 8B: LoRA": ("torchtune-8b", "LoRA"),
    "Llama 8B: QLoRA": ("torchtune-8b", "QLoRA"),
}
"""The published figures of chapter 11c in pairs, by experiment and quantity."""


def rows(part: str, **settings: Any) -> list[dict[str, Any]]:
    """Returns the rows of a part ("fp8", "optimizers" or "qlora") with these settings, with sizes in bytes."""
    found = yaml.safe_load(STORED.read_text(encoding="utf-8"))[part]
    return [row for row in found if all(row[name] == value for name, value in settings.items())]


def row(part: str, **settings: Any) -> dict[str, Any]:
    """Returns the one row of a part with these settings. Raises LookupError if none or several have them."""
    found = rows(part, **settings)
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of {part!r} have {settings}, one was wanted; there are {rows(part)}")
    return found[0]


def states() -> pd.DataFrame:
    """Returns the states of each model and optimizer in bytes per parameter; empty where one was not measured."""
    found = pd.DataFrame([one for one in rows("optimizers") if "states" in one])
    found["states"] /= found["parameters"]
    table = found.pivot(index="model", columns="optimizer", values="states").round(2)
    order = ["torch", "bitsandbytes", "paged", "Trainer"]
    return table[order].astype(object).fillna("").rename_axis(columns=None).rename_axis("states, bytes per parameter")


def compared() -> pd.DataFrame:
    """Returns the published figures next to those measured here, in MiB, and what fewer bits changed in both."""
    context = (int(published.find("bert-large", "context").mib) - 2) * MiB  # recorded with a segment of 2 MiB
    recipes, optimizers, ways = ("bf16", "tensorwise"), ("torch", "bitsandbytes"), ("8B LoRA", "8B QLoRA")
    here = [row("fp8", model="running", recipe=recipe)["backward"] for recipe in recipes]
    here += [row("optimizers", model="bert-large", optimizer=name)["reserved"] + context for name in optimizers]
    here += [row("qlora", model=way)["backward"] for way in ways]
    there = [float(published.find(*where).mib) for where in PUBLISHED.values()]
    table = pd.DataFrame({"published (MiB)": there, "here (MiB)": [size / MiB for size in here]}, index=[*PUBLISHED])
    for name in ("published", "here"):
        sizes = table[f"{name} (MiB)"]
        change = sizes.to_numpy()[1::2] / sizes.to_numpy()[::2] - 1
        table[f"change {name}"] = [text for one in change for text in ("", f"{one:+.1%}")]
    return table.round().astype({"published (MiB)": int, "here (MiB)": int})
