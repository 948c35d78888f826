"""Writes the bars of the running model's budget chart, notebooks/data/budget.yaml: `python -m tools.budget`.

    python -m tools.budget                   all bars, by the cells that chapters 00 and 09 to 14 tag with "budget"
    python -m tools.budget --compiled        the table of compiled peaks (chapter 13), on the stub engine
    python -m tools.budget --compiled T4     only the row of that GPU
    python -m tools.budget --tower           what chapter 13's tower saves and where it peaks

The commands with an option need the stub engine and liger-kernel, and their figures are those of PyTorch's CUDA code
without a GPU. What the other commands stored stays as it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import nbformat
import yaml

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
STORED = NOTEBOOKS / "data" / "budget.yaml"
FIRST = "00_out_of_memory"
TAG = "budget"
HEAD = "# Written by python -m tools.budget. Peaks of the running model's training step, in bytes.\n"
WAYS = ("eager", "compiled", "Liger", "compiled, Liger")
TOWER_WAYS = ("eager", "compiled", "compiled, CUDA graphs")
CHECKPOINTS = {"A100-80GB": False, "T4": True}
"""The GPUs of the compiled peaks, and whether the model has checkpoints there and trains in micro-batches of 1."""
MEASURED = {
    "A100-80GB": WAYS,
    "T4": WAYS[:1],
}  # Inductor skips bfloat16 graphs on a T4; eager is compared with the chart


def cells(path: Path) -> list[str]:
    """The sources of a notebook's code cells with the tag, in order; empty if it has none."""
    notebook = nbformat.read(path, as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == "code" and TAG in cell.metadata.get("tags", [])]


def executed(path: Path) -> dict:
    """The names that a notebook's tagged cells define. They are executed in order, without the other cells."""
    import torch

    from helpers import models, running

    names: dict = {"__name__": "__main__", "torch": torch, "models": models, "running": running}  # a chapter's imports
    for source in cells(path):
        exec(compile(source, path.name, "exec"), names)
    return names


def chapters() -> list[Path]:
    """The notebooks whose bars are stored, in the order of the chart."""
    return [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if cells(path)]


def load() -> dict:
    return yaml.safe_load(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}


def write(data: dict) -> None:
    STORED.write_text(HEAD + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")


def bars() -> None:
    """Executes the tagged cells of each chapter, and stores the bar that each of them adds."""
    import labkit

    labkit.use_gpu("T4", only_simulated=True)
    data, rows = load(), []
    for path in chapters():
        budget = executed(path)["budget"]
        if path.stem == FIRST:
            data["gpu"], data["limit"] = budget.gpu, budget.limit
        for name, (backward, step) in list(budget.rows.items())[budget.earlier :]:
            technique = name.rpartition(" · ")[2]
            rows.append({"chapter": path.name[:2], "technique": technique, "backward": backward, "step": step})
        data["bars"] = rows
        data["measured with"] = {name: version(name).partition("+")[0] for name in ("torch", "transformers")}
        write(data)


def eight_billion() -> None:
    """Measures a Llama with 8 billion parameters under one technique after another, and stores its bars.

    The first two bars are the whole batch, in float32 and in bfloat16. The others are what the tagged cells of the
    chapters measure when the running model has this shape.
    """
    import torch

    from helpers import running
    from labkit import simulated_gpu

    def whole(dtype):
        def build():
            model = running.model(dtype)
            return model, torch.optim.AdamW(model.parameters())

        def step(model, optimizer, batch):
            model(batch, labels=batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return running.measure(build, step)

    with mock.patch.multiple(running, SHAPE=running.EIGHT_BILLION, GPU="A100-80GB", MEMORY=400 * 2**30):
        found = {f"{dtype}, whole batch": whole(getattr(torch, dtype)) for dtype in ("float32", "bfloat16")}
        for path in chapters():
            if path.name[:2] in ("09", "10", "12", "14"):
                name, peaks = list(executed(path)["budget"].rows.items())[-1]
                found[f"+ {name.rpartition(' · ')[2]}"] = peaks
    with simulated_gpu("A100-80GB"):
        limit = torch.cuda.mem_get_info()[0]
    rows = [{"technique": name, "backward": backward, "step": step} for name, (backward, step) in found.items()]
    write(load() | {"8B": {"gpu": "A100-80GB", "limit": limit, "bars": rows}})


SCRIPT = """\
import sys
import torch
from helpers import models, running
way, checkpoints, layers = sys.argv[1:]
running.SHAPE["num_hidden_layers"] = int(layers)
if "Liger" in way:
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    apply_liger_kernel_to_llama()
def build():
    model = running.model()
    if checkpoints == "yes":
        models.checkpoint_layers(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return torch.compile(model) if "compiled" in way else model, optimizer
def step(model, optimizer, batch):
    if checkpoints == "yes":
        running.micro_batches(model, batch)
    else:
        model(batch, labels=batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("peaks:", *running.train(build, step, first=4))  # a new shape would be compiled anew
"""
TOWER = """\
import sys
import torch
from torch import nn
class WrittenOut(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
way = sys.argv[1]
batch, width = 16_384, 1024
with torch.device("cuda"):
    model = nn.Sequential(nn.Linear(width, width), WrittenOut(), nn.Linear(width, width))
    x = torch.zeros(batch, width)
mode = "reduce-overhead" if "CUDA graphs" in way else "default"
run = torch.compile(model, mode=mode) if "compiled" in way else model
for step in range(5):  # CUDA graphs are recorded in the second and third
    model.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = run(x)
    added = torch.cuda.memory_allocated() - before
    y.mean().backward()
    y = None
    peak = torch.cuda.max_memory_allocated() - before
print("peaks:", added, peak, torch.cuda.max_memory_reserved())
"""
PEAKS = re.compile(r"^peaks: ([\d -]+)$", re.M)


def on_the_stub_engine(gpu: str, script: str, *arguments: str) -> list[int]:
    """The figures in bytes that a script prints after "peaks:" on the stub engine.

    Raises RuntimeError with the output of the run if it printed none.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.py")
        path.write_text(script, encoding="utf-8")
        command = [sys.executable, "-m", "simgpu", "run", "--engine", "stub", "--gpu", gpu, str(path), *arguments]
        places = os.pathsep.join([str(ROOT), str(NOTEBOOKS), *sys.path])
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": places}
        )
    found = PEAKS.search(done.stdout)
    if found is None:
        raise RuntimeError(f"{' '.join(arguments)} on a {gpu} failed:\n{done.stdout}\n{done.stderr}")
    return [int(size) for size in found[1].split()]


def running_model(gpu: str, way: str, checkpoints: bool, layers: int = 24) -> tuple[int, int]:
    """The two peaks of the running model on the stub engine, in bytes; `way` is one of WAYS."""
    backward, step = on_the_stub_engine(gpu, SCRIPT, way, "yes" if checkpoints else "no", str(layers))
    return backward, step


def tower(gpu: str = "A100-80GB") -> None:
    """Measures what forward adds, where the step peaks above what is allocated before it, and the reserved peak."""
    from simgpu.stub import engine

    rows = []
    for way in TOWER_WAYS:
        added, peak, reserved = on_the_stub_engine(gpu, TOWER, way)
        print(way, added, peak, reserved, flush=True)
        rows.append({"way": way, "added": added, "peak": peak, "reserved": reserved})
    write(load() | {"tower": {"gpu": gpu, "torch": engine.find(None).version, "rows": rows}})


def compiled(gpus: list[str]) -> None:
    """Measures the running model in each way, such as compiled with Liger's kernels, and stores the peaks."""
    from simgpu.stub import engine

    for gpu in gpus or list(CHECKPOINTS):
        for way in MEASURED[gpu]:
            backward, step = running_model(gpu, way, CHECKPOINTS[gpu])
            print(gpu, way, backward, step, flush=True)
            data = load()
            row = {"gpu": gpu, "checkpoints": CHECKPOINTS[gpu], "way": way, "backward": backward, "step": step}
            rows = [one for one in data.get("compiled", []) if (one["gpu"], one["way"]) != (gpu, way)]
            versions = {"torch": engine.find(None).version, "liger-kernel": version("liger-kernel")}
            rows = sorted([*rows, row], key=lambda one: (list(CHECKPOINTS).index(one["gpu"]), WAYS.index(one["way"])))
            write(data | {"compiled with": versions, "compiled": rows})


if __name__ == "__main__":
    sys.path.insert(0, str(NOTEBOOKS))
    if sys.argv[1:2] == ["--compiled"]:
        compiled(sys.argv[2:])
    elif sys.argv[1:] == ["--tower"]:
        tower()
    else:
        bars()
        eight_billion()
