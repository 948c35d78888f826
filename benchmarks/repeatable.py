"""Runs five small programs several times on the stub engine, and counts how many different reports they have.

The whole of report.json is compared. The runs share caches of Inductor and Triton, which are empty at the beginning, so
the first run of a program compiles it and the later ones find it compiled.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SETUP = """
import torch
from torch import nn
def train(model, width, optimizer):
    for _ in range(4):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(64, width, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
def mlp(width, layers):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).cuda()
"""
PROGRAMS = {
    "eager": "model = mlp(512, 4); train(model, 512, torch.optim.AdamW(model.parameters()))",
    "compiled": "model = mlp(512, 4); model.compile(); train(model, 512, torch.optim.AdamW(model.parameters()))",
    "CUDA graphs": """
model, x = mlp(512, 1), torch.randn(64, 512, device="cuda")
with torch.cuda.stream(torch.cuda.Stream()):
    for _ in range(3):
        model(x).sum().backward()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    model(x).sum().backward()
for _ in range(5):
    graph.replay()
""",
    "Triton kernel": """
import triton, triton.language as tl
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    tl.store(out + index, tl.load(x + index, inside) + tl.load(y + index, inside), inside)
x, y = torch.randn(2, 10**6, device="cuda")
for _ in range(4):
    out = torch.empty_like(x)
    add[(triton.cdiv(10**6, 1024),)](x, y, out, 10**6, BLOCK=1024)
""",
    "DDP, rank 0 of 2": """
import torch.distributed as dist
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(mlp(1024, 8))
train(model, 1024, torch.optim.SGD(model.parameters(), momentum=0.9))
""",
}
RANKS = ["--ranks", "2", "--rank", "0"]


def measure(name: str, folder: Path) -> tuple[str, str]:
    """Runs a program once. Returns its figures as a text, and a hash of its report."""
    script, out = folder / f"{'_'.join(name.split())}.py", folder / "out"
    script.write_text(SETUP + PROGRAMS[name], encoding="utf-8")
    command = [sys.executable, "-m", "simgpu", "run", "--engine", "stub", "--gpu", "H100", "--out", str(out)]
    command += [*(RANKS if "rank" in name else []), str(script)]
    caches = {key: str(folder / key) for key in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    ended = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True, timeout=900)
    if not (out / "report.json").exists():
        raise RuntimeError(f"{name} wrote no report: {ended.stdout[-500:]}{ended.stderr[-500:]}")
    text = (out / "report.json").read_text(encoding="utf-8")
    report = json.loads(text)
    for path in sorted(out.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    figures = f"{report['outcome']}, peak {report['peak']:,} B, reserved {report['reserved']:,} B"
    return figures, hashlib.sha256(text.encode()).hexdigest()[:12]


def main(times: int = 10):
    seen: dict[str, list[tuple[str, str]]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(times):
            for name, found in seen.items():
                found.append(measure(name, Path(folder)))
                print(f"{name} {len(found)}: {found[-1][0]}, report {found[-1][1]}", flush=True)
    for name, found in seen.items():
        print(f"{name}: {len(set(found))} different reports in {times} runs; {found[-1][0]}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
