"""The oracle's figures: stored beside this file with the versions that gave them, or asked again."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.league.answer import GPUS, Answer

FILE = Path(__file__).with_name("oracle.json")
MADE_BY = "PyTorch's CUDA host code under stub libraries; no GPU was involved"
VERSIONS = ("torch", "transformers")


def stored() -> dict[str, Answer]:
    """By workload: the oracle's peak on each GPU, None where it ran out of memory."""
    content = json.loads(FILE.read_text())
    return {name: _answer(dict(zip(GPUS, peaks, strict=True))) for name, peaks in content["peaks"].items()}


def _answer(peaks: dict[str, int | None]) -> Answer:
    return Answer(peaks, {gpu: peak is not None for gpu, peak in peaks.items()})


def versions() -> dict[str, str]:
    """Of what the stored figures were made with."""
    content = json.loads(FILE.read_text())
    return {name: content[name] for name in VERSIONS}


def store(answers: dict[str, Answer], made_with: dict[str, str]) -> None:
    """Write the figures. Raises ValueError where the oracle did not answer."""
    failed = {name: answer.refused for name, answer in answers.items() if answer.refused}
    if failed:
        raise ValueError(f"the oracle did not answer: {failed}")
    rows = {name: [answer.peak[gpu] for gpu in GPUS] for name, answer in answers.items()}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(peaks)}" for name, peaks in rows.items())
    head = {"made by": MADE_BY, **made_with, "gpus": GPUS, "unit": "bytes, null: out of memory"}
    FILE.write_text(json.dumps(head)[:-1] + f', "peaks": {{\n{lines}\n}}}}\n')
