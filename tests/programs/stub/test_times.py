"""Times of programs on the stub engine: estimated from what PyTorch, Inductor and Triton launch. Needs the engine."""

import pytest

import simgpu
from simgpu.clock.estimates import TimeEstimate
from simgpu.report.report import Report
from simgpu.stub import engine

pytestmark = pytest.mark.skipif(
    bool(engine.supported()) or engine.unpacked(engine.DEFAULT_VERSION) is None,
    reason="the stub engine of torch 2.13.0 is not installed: simgpu engine install --torch 2.13.0",
)

TRAIN = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(2048, 1024, device="cuda")
for step in range(5):
    compiled(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OWN_KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offsets, 2 * tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

x = torch.randn(4096, device="cuda")
double[(4,)](x, 4096, BLOCK=1024)
x.sum()
"""


OWN_TRACE = """
import torch
from torch.profiler import ExecutionTraceObserver
observer = ExecutionTraceObserver().register_callback(PATH)
x = torch.ones(1000, 1000, device="cuda")
observer.start()
y = x @ x
observer.stop()
observer.unregister_callback()
z = x @ x
"""


@pytest.fixture
def run(tmp_path):
    def ran(text: str) -> Report:
        path = tmp_path / "script.py"
        path.write_text(text)
        return simgpu.run(path, engine="stub", torch_version=engine.DEFAULT_VERSION, gpu="H100")

    return ran


def test_a_compiled_step_has_a_time_and_the_page_says_what_it_is_based_on(run, tmp_path, capfd):
    report = run(TRAIN)
    assert report.completed, report.ended
    assert isinstance(report.time, TimeEstimate) and isinstance(report.step_time, TimeEstimate)
    assert report.step_time.work.startswith("training")
    assert 0 < report.step_time.low < report.step_time.seconds < report.step_time.high
    assert report.step_time.clock < report.time.clock
    # forward and two matmuls of each gradient but that of the input, at least as long as the data sheet's rate allows
    assert report.step > 2 * 2048 * 1024 * 4096 * 5 / 67e12
    assert "kernels that Inductor generated" in report.timed and "replays of CUDA graphs" in report.timed
    assert f"a step takes {report.step_time};" in str(report) and report.timed in str(report)
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json").step_time == report.step_time
    assert "Execution Trace" not in capfd.readouterr().err


def test_a_kernel_of_the_programs_own_has_no_time_and_so_there_is_no_total(run):
    report = run(OWN_KERNEL)
    assert report.completed, report.ended
    assert report.time is None and report.step_time is None and report.seconds == 0
    assert "the Triton kernel double (launched once)" in report.timed and report.timed in str(report)


@pytest.mark.parametrize("first", ["", "torch.ones(1, device='cuda')\n"])
def test_a_trace_of_the_programs_own_is_left_alone_and_there_is_no_time(run, tmp_path, first):
    path = tmp_path / "trace.json"
    text = OWN_TRACE.replace("PATH", repr(str(path))).replace("observer =", f"{first}observer =")
    report = run(text)
    assert report.completed and report.peak > 8_000_000, report.ended
    assert report.time is None and "an execution trace of its own" in report.timed
    assert "aten::mm" in path.read_text()
