"""A process ends with a simulated GPU still on, however Python was started, without a word and with its own status."""

import multiprocessing
import os
import subprocess
import sys

import pytest
import torch

import simgpu

PROGRAM = """
import atexit, sys, torch, simgpu

def suspended():
    with simgpu.simulated_gpu("H100"):
        yield torch.ones(8, device="cuda")

class Holder:
    def __init__(self):
        self.itself, self.tensor = self, torch.ones(4, device="cuda")

    def __del__(self):
        self.tensor = None

gpu = simgpu.simulated_gpu("T4")
gpu.__enter__()
layer = torch.nn.Linear(8, 8).cuda()
layer(torch.randn(2, 8, device="cuda")).sum().backward()
generator = suspended()
inner = next(generator)
holder = Holder()
atexit.register(lambda: torch.ones(4, device="cuda").sum())
sys.exit(7 if inner.is_cuda and layer.weight.grad is not None else 1)
"""


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (["-X", "dev"], {}),
        (["-W", "error"], {"PYTHONSAFEPATH": "1"}),
        ([], {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
    ],
    ids=["dev", "warnings as errors", "locale C"],
)
def test_with_a_gpu_that_is_on(options, more, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **more}
    ran = subprocess.run(
        [sys.executable, *options, "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "", "")


def counted() -> tuple:
    layer = torch.nn.Linear(64, 64).cuda()
    layer(torch.randn(8, 64, device="cuda")).sum().backward()
    stats = torch.cuda.memory_stats()
    return stats["allocated_bytes.all.peak"], stats["allocation.all.allocated"]


def answer(queue) -> None:
    queue.put(counted())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork where threads run
def test_a_child_that_is_forked_has_the_gpu_as_it_was_and_counts_for_itself():
    with simgpu.simulated_gpu("A100-80GB"):
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=answer, args=(queue,))
        child.start()
        there = queue.get()
        child.join()
        assert child.exitcode == 0
        assert torch.cuda.memory_allocated() == 0
        assert counted() == there
