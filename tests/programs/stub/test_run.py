"""`simgpu run --engine stub`: what is reported of a script that PyTorch's own CUDA build ran. Needs the engine."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import simgpu
from simgpu.stub import engine

pytestmark = pytest.mark.skipif(
    bool(engine.supported()) or engine.unpacked(engine.DEFAULT_VERSION) is None,
    reason="the stub engine of torch 2.13.0 is not installed: simgpu engine install --torch 2.13.0",
)

TRAIN = """
import os, sys
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch
from torch import nn
model = nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(256, 1024, device="cuda")
for step in range(50):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mask = x > 0
    print("loss", loss.item(), x[mask].shape)
"""


@pytest.fixture
def script(tmp_path):
    def written(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return written


def run(path, **more):
    return simgpu.run(path, engine="stub", torch_version=engine.DEFAULT_VERSION, gpu="H100", **more)


FINDER = """
import torch
def find(size=8):
    while size:
        try:
            return torch.empty(size * 2**38, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            size //= 2
    raise RuntimeError("no batch size works")
{}
"""


@pytest.mark.parametrize(("after", "status"), [("find()", 1), ("try: find()\nexcept RuntimeError: pass\n[][0]", 2)])
def test_an_error_raised_in_the_place_of_an_out_of_memory_error(script, after, status):
    report = run(script(FINDER.replace("{}", after)))
    assert report.status == status
    assert ("The program ended with RuntimeError: no batch size works" in str(report)) == (status == 1)


TRACED = """
import torch
from torch._dynamo.utils import counters
torch._dynamo.config.compiled_autograd = True
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
@torch.compile
def train(x):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    print("the mask is", bool((torch.arange(4, device="cuda") > 1).any()))
train(torch.randn(8, 64, device="cuda"))
print("broken by", dict(counters["graph_break"]))
"""


def test_dynamo_compiles_nothing_of_what_watches_the_program(script, capfd):
    report = run(script(TRACED))
    assert report.completed, report.ended
    printed = capfd.readouterr()
    assert "call_boxed" not in printed.out + printed.err and "simgpu" not in printed.out.partition("broken by")[2]


GENERATED = """
import torch
from torch.fx import symbolic_trace
def double(x):
    return torch.cat([x, x])
kept = symbolic_trace(double)(torch.ones(2**20, device="cuda"))
"""


def test_code_that_fx_generates_belongs_to_the_line_that_calls_it(script):
    (found,) = [line for line in run(script(GENERATED)).lines if line.operator.startswith("cat")]
    assert found.place == "script.py:6"


def test_a_training_script(script, tmp_path):
    report = run(script(TRAIN), steps=2, out=tmp_path / "out")
    assert report.completed and report.steps == 2
    weights = 4 * (1024 * 1024 + 1024)
    assert report.parts["parameters and buffers"] == weights
    assert report.parts["optimizer states"] == 2 * weights + 2 * 512  # a step of one float for each parameter
    assert report.reserved % (2 * 2**20) == 0
    assert report.nvidia_smi == report.reserved + report.context
    assert "expandable_segments" not in str(report)
    lines = Counter()
    for one in report.lines:
        if one.part == "parameters and buffers":
            lines[one.place.rpartition("/")[2]] += one.nbytes
    assert lines == {"script.py:6": weights}
    assert report.outcome == "undecided" and "sizes at 1 line depend on values" in report.verdict.reason
    assert {what for what, _, _ in report.placeholder_values} == {"a value", "the size of nonzero"}
    assert str(report).startswith("Engine stub")
    assert (tmp_path / "out" / "snapshot.pickle").exists()


def test_memory_that_runs_out(script):
    text = "import torch\nkept = []\nfor i in range(99):\n    kept.append(torch.empty(2**28, device='cuda'))\n"
    report = run(script(text), memory="8 GiB")
    assert report.outcome == "does not fit"
    assert report.failure is not None and report.failure[0] == 2**30
    assert "CUDA out of memory. Tried to allocate 1024.00 MiB" in report.failure[2]
    assert report.at is not None and report.at.place.endswith("script.py:4")


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("import torch\ntorch.ones(3, device='cuda')\nraise KeyError('x')", "KeyError: 'x'"),
        ("import os\nos._exit(4)", "its process ended with status 4"),
        ("import os\nos.kill(os.getpid(), 9)", "signal SIGKILL"),
    ],
)
def test_a_program_that_fails(script, text, ended):
    report = run(script(text))
    assert report.outcome == "failed"
    assert ended in report.ended


def test_the_command(script):
    path = script("import sys, torch\nprint(sys.argv[1:], torch.ones(2, device='cuda'), torch.cuda.get_device_name())")
    command = [sys.executable, "-m", "simgpu", "run", "--engine", "stub", "--gpu", "RTX 4090", str(path), "--flag"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "['--flag'] tensor(..., size=(2,), device='cuda:0') NVIDIA GeForce RTX 4090" in done.stdout


SAVE = """
open("log.txt", "w").write("new")
import torch
model = torch.nn.Linear(8, 8).cuda()
torch.save(model.state_dict(), "old.pt")
torch.save(model.state_dict(), "new.pt")
assert open("log.txt").read() == "new" and "weight" in torch.load("old.pt")
"""


def test_files_that_existed_are_as_they_were(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("log.txt", "old.pt"):
        (tmp_path / name).write_text("mine")
    report = run(script(SAVE))
    assert report.completed, report.ended
    assert [(tmp_path / name).read_text() for name in ("log.txt", "old.pt")] == ["mine", "mine"]
    assert not (tmp_path / "new.pt").exists()
    assert {Path(one.path).name for one in report.files} == {"log.txt", "old.pt", "new.pt"}


SPAWN = """
import multiprocessing, torch

def work(number):
    kept = torch.empty(number * 2**28, dtype=torch.uint8, device="cuda")

if __name__ == "__main__":
    started = [multiprocessing.get_context("spawn").Process(target=work, args=(i,)) for i in (1, 2)]
    [one.start() for one in started]
    [one.join() for one in started]
    work(4)
"""


def test_processes_that_the_program_starts_count(script):
    report = run(script(SPAWN))
    assert report.completed, report.ended
    assert report.nvidia_smi == (1 + 2 + 4) * 2**28 + 3 * report.context
    assert any("2 other processes" in note for note in report.notes)


def test_a_librarys_workspaces_are_named_where_it_was_called(script):
    """cuDNN's convolutions have workspaces that only a GPU knows; a matmul has none."""
    program = "import torch\nlayer = torch.nn.{}.cuda()\nlayer(torch.randn({}, device='cuda'))\n"
    convolution = run(script(program.format("Conv2d(3, 8, 3)", "1, 3, 8, 8")))
    assert convolution.unmodeled == "at least: without cuDNN's workspaces"
    assert "set aside for what is not modelled" in str(convolution)
    assert run(script(program.format("Linear(3, 8)", "1, 3"))).unmodeled == ""


CHECKPOINT = """
import os, torch
torch.save(torch.ones(1000, device="cuda"), "model.pt")
assert torch.load("model.pt").shape == (1000,)
os.remove("old.txt")
"""


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.run([sys.executable, 'train.py'], check=True)",
        "os.system(sys.executable + ' train.py')",
        "torch.multiprocessing.spawn(exec_it)",
    ],
)
def test_a_process_that_the_program_starts_keeps_files_apart_too(tmp_path, monkeypatch, script, start):
    monkeypatch.chdir(tmp_path)
    for name in ("model.pt", "old.txt"):
        (tmp_path / name).write_text("the user's")
    (tmp_path / "train.py").write_text(CHECKPOINT)
    main = "import os, subprocess, sys, torch\ndef exec_it(rank):\n    exec(open('train.py').read())\n"
    report = run(script(f"{main}if __name__ == '__main__':\n    {start}\n"))
    assert report.completed, report
    assert [(tmp_path / name).read_text() for name in ("model.pt", "old.txt")] == ["the user's"] * 2
    assert "model.pt" in {Path(one.path).name for one in report.files}
    assert report.outcome == "undecided" and "except by another process" in report.verdict.reason


def test_nvml_answers_under_its_first_and_its_later_names(script, capfd):
    """A program that knows no second version of a function calls the first."""
    report = run(
        script("""
import pynvml, torch
torch.ones(8, device="cuda")
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
assert tuple(pynvml.nvmlDeviceGetCudaComputeCapability(device)) == torch.cuda.get_device_capability() == (9, 0)
for first in ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlSystemGetCudaDriverVersion"):
    pynvml._nvmlGetFunctionPointer(first)
print(pynvml.nvmlDeviceGetCount(), pynvml.nvmlSystemGetCudaDriverVersion(), pynvml.nvmlDeviceGetName(device))
""")
    )
    assert report.ending == "completed" and "1 13000 NVIDIA H100" in capfd.readouterr().out
