"""Puts the page "Will it fit?" into a folder: its files, and its tables as data.js, so that it needs no server."""

import json
import shutil
from pathlib import Path

from simgpu.gpus.specs import spec
from simgpu.report.verdict import CONTEXT_UNCERTAINTY
from tools.calculator import estimates, tables
from tools.calculator.presets import BATCHES, MODELS, MOST_TOKENS, PLANS

PAGE = Path(__file__).parent / "page"
DATA = "data.js"


def data() -> dict:
    """Returns what the page knows; sizes are in bytes."""
    kept = tables.stored()
    cells, context = kept["cells"].items(), spec(kept["base"]).context
    known = sorted(kept["differences"], key=lambda name: (spec(name).total_memory, name))
    return {
        "base": kept["base"],
        "torch": kept["torch"],
        "batches": BATCHES,
        "lengths": sorted({length for model in MODELS.values() for length in model.lengths}),
        "gpus": sorted({number for plan in PLANS.values() for number in plan.gpus}),
        "most_tokens": MOST_TOKENS,
        "same_tokens": tables.same_tokens(kept["cells"]),
        "uncertainty": CONTEXT_UNCERTAINTY,
        "cells": {name: [peak + context, smallest, reserved + context] for name, (peak, reserved, smallest) in cells},
        "models": {
            key: {"name": one.name, "config": one.config, "plans": one.plans, "lengths": one.lengths}
            for key, one in MODELS.items()
        },
        "plans": {key: {"words": one.words, "options": one.options, "gpus": one.gpus} for key, one in PLANS.items()},
        "cards": [
            {"name": name, "total": spec(name).total_memory, "difference": kept["differences"][name]} for name in known
        ],
        "estimates": estimates.stored(),
    }


def build(folder: Path) -> Path:
    """Writes the page into `folder`, which is made anew, and returns its index.html.

    Raises FileExistsError for a folder that holds something else than this page; then nothing is written.
    """
    if folder.exists():
        if any(folder.iterdir()) and not (folder / DATA).exists():
            raise FileExistsError(f"{folder} holds something else than this page: name a new folder, or an empty one")
        shutil.rmtree(folder)
    shutil.copytree(PAGE, folder)
    (folder / DATA).write_text(f'"use strict";\nconst DATA = {json.dumps(data())};\n', encoding="utf-8")
    return folder / "index.html"
