"""Writes notebooks/data/quantised.yaml, whose figures chapter 11c shows.

    python -m tools.quantised                  everything (ten minutes)
    python -m tools.quantised qlora            one part: fp8, optimizers or qlora
    python -m tools.quantised --missing        only what the file does not have yet

The scripts of this folder run on the stub engine, so the figures are those of PyTorch's CUDA code without a GPU. They
need torchao, bitsandbytes and peft, which the course does not require. Install them into a folder of their own with
`pip install --no-deps --target FOLDER torchao bitsandbytes peft`, and add it to PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

import yaml

from simgpu.stub import engine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STORED = ROOT / "notebooks" / "data" / "quantised.yaml"
HEAD = "# Written by python -m tools.quantised: PyTorch's CUDA code without a GPU (the stub engine), in bytes.\n"
RESULT = re.compile(r"^result: (.*)$", re.M)
LIBRARIES = {"fp8": ("torchao",), "optimizers": ("bitsandbytes",), "qlora": ("bitsandbytes", "peft", "accelerate")}
"""The parts of the file, and the libraries that each of them measures, in addition to torch and transformers."""
RUNS = {
    "fp8": (("H100", "chain"), ("H100", "running")),
    "optimizers": (("H100", "matrix"), ("H100", "running"), ("H100", "gemma-3-270m"), ("V100-16GB", "bert-large")),
    "qlora": (("RTX A6000", "8B QLoRA"), ("RTX A6000", "8B LoRA"), ("RTX A6000", "65B QLoRA")),
}
"""The GPU and the model of each run of a part. A run prints several rows."""


def measured(part: str, gpu: str, model: str) -> list[dict]:
    """Runs the script of a part on the stub engine and returns its rows.

    Raises RuntimeError with the output if it printed none.
    """
    command = [sys.executable, "-m", "simgpu", "run", "--engine", "stub", "--gpu", gpu, str(HERE / f"{part}.py"), model]
    path = os.pathsep.join([str(ROOT), str(ROOT / "notebooks"), *sys.path])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    found = RESULT.findall(done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"{part}, {model} on a {gpu} failed:\n{done.stdout}\n{done.stderr}")
    return [{"gpu": gpu, "model": model, **json.loads(row)} for row in found]


def stored() -> dict:
    """Returns what the file has: for each part its rows, and with what they were measured."""
    return yaml.safe_load(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}


def store(part: str, rows: list[dict]) -> None:
    """Stores the rows of a run in place of earlier ones of the same model."""
    data = stored()
    versions = {"torch": engine.find(None).version, "transformers": version("transformers")}
    versions |= {name: version(name) for name in LIBRARIES[part]}
    others = [row for row in data.get(part, []) if row["model"] != rows[0]["model"]]
    data |= {f"{part} measured": {"date": date.today().isoformat(), **versions}, part: [*others, *rows]}
    STORED.write_text(HEAD + yaml.safe_dump(data, sort_keys=False, width=120), encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Runs the parts that are named, or all."""
    parts, missing = [one for one in arguments if one != "--missing"], "--missing" in arguments
    if wrong := set(parts) - set(RUNS):
        raise SystemExit(f"no such part: {', '.join(sorted(wrong))}; there are {', '.join(RUNS)}")
    for part in parts or RUNS:
        for gpu, model in RUNS[part]:
            if missing and any(row["model"] == model for row in stored().get(part, [])):
                continue
            rows = measured(part, gpu, model)
            print(part, *rows, sep="\n", flush=True)
            store(part, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
