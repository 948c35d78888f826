"""The stub engine's page says what the meta engine's says: the smallest capacity, findings, limits and interrupts."""

import os
import signal
import subprocess
import sys

import pytest

import simgpu
from simgpu.report.report import Report
from simgpu.stub import engine

pytestmark = pytest.mark.skipif(
    bool(engine.supported()) or engine.unpacked(engine.DEFAULT_VERSION) is None,
    reason="the stub engine of torch 2.13.0 is not installed: simgpu engine install --torch 2.13.0",
)

TRAIN = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).to("cuda")
one = torch.optim.AdamW(model[0].parameters())
other = torch.optim.SGD(model[2].parameters())
kept = []
for step in range(50):
    x = torch.randn(1024 + 512 * step, 1024, device="cuda")
    kept.append(x.new_zeros(2**20))
    model(x).square().mean().backward()
    one.step()
    if step % 2:
        other.step()
    one.zero_grad()
    other.zero_grad()
"""


def test_both_engines_say_the_same_of_a_training(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    options = {"gpu": "H100", "steps": 3}
    stub = simgpu.run(path, engine="stub", torch_version=engine.DEFAULT_VERSION, out=tmp_path / "stub", **options)
    meta = simgpu.run(path, engine="meta", out=tmp_path / "meta", **options)
    for name in ("peak", "reserved", "nvidia_smi", "smallest", "steps", "ended", "bounds", "outcome"):
        assert getattr(stub, name) == getattr(meta, name), name
    assert stub.at is not None and meta.at is not None and stub.at.steps == meta.at.steps
    sentences = {
        name: [one for one in report.findings if one.name == name]
        for name, report in (("memory grows", stub), ("fragmentation", stub))
    }
    assert [str(one) for one in sentences["fragmentation"]] == [
        str(one) for one in meta.findings if one.name == "fragmentation"
    ]
    assert sentences["fragmentation"] and [one.nbytes for one in sentences["memory grows"]] == [2**22]
    assert "new_zeros" in sentences["memory grows"][0].text
    written = [sorted(one.name for one in (tmp_path / name).iterdir()) for name in ("stub", "meta")]
    assert written[0] == written[1]


LOOP = """
import os, signal, time, torch
from torch import nn
model = nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for step in range(99):
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    if step == 2: os.kill({who}, signal.SIGINT); time.sleep(60)
"""


@pytest.mark.parametrize("who", ["os.getpid()", "os.getppid()"])
def test_ctrl_c_shows_what_was_measured(tmp_path, who):
    (tmp_path / "loop.py").write_text(LOOP.replace("{who}", who))
    command = [sys.executable, "-m", "simgpu", "run", "--engine", "stub", "--out", str(tmp_path / "out")]
    command += [str(tmp_path / "loop.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ}, stdin=subprocess.DEVNULL, start_new_session=True
    )
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert "Interrupted by Ctrl-C, after 3 optimizer steps." in done.stdout
    report = Report.load(tmp_path / "out" / "report.json")
    assert report.interrupted and report.peak > 0 and report.bounds


def test_a_limit_that_can_miss_the_peak_says_so(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    report = simgpu.run(path, engine="stub", torch_version=engine.DEFAULT_VERSION, gpu="H100", backward_passes=1)
    assert report.ended.startswith("Ended before backward pass 2, as --backward-passes says")
    assert "2 of 2 optimizers had made fewer than 2 steps" in report.bounds[0]
