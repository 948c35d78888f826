"""Scripts as people write them, unmodified under simgpu run: to the end, and with the oracle's peaks.

The figures are those of PyTorch's CUDA host code under stub libraries, stored by `python -m tools.oracle.scripts
--keep`, which runs each script on both sides.
"""

import json
import sys

import pytest
import torch

import simgpu
from simgpu import placeholder_values
from simgpu.report.files import TENSORS
from tests.pinned import of_pinned_torch
from tools.oracle.scripts import SCRIPTS, STORED

ORACLE = json.loads(STORED.read_text(encoding="utf-8"))


AT_ONCE = {"nano"}  # the others train for twenty seconds on the CPU: with values once a week
WAYS = [pytest.param(name, False, id=f"{name}-without values") for name in SCRIPTS] + [
    pytest.param(name, True, id=f"{name}-with values", marks=[] if name in AT_ONCE else pytest.mark.everywhere)
    for name in SCRIPTS
]


@pytest.fixture
def as_before():
    """Scripts set these for the whole process, and import what lies beside them."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends], torch.backends.cudnn.enabled, set(sys.modules)
    yield
    for backend, allowed in zip(backends, before[0], strict=True):
        backend.allow_tf32 = allowed
    torch.backends.cudnn.enabled = before[1]
    for name in ("model", "utils"):
        if name not in before[2]:
            sys.modules.pop(name, None)


@of_pinned_torch
@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize(("name", "values"), WAYS)
def test_it_ends_with_the_oracles_peaks(name, values, tmp_path, monkeypatch, capsys):
    path = SCRIPTS[name].prepare(tmp_path)
    monkeypatch.chdir(path.parent)
    how = {"gpu": ORACLE[name]["gpu"], "values": values, "out": path.parent / "kept"}
    report = simgpu.run(path.name, SCRIPTS[name].arguments.split(), **how)
    assert report.ended == "" and report.completed
    assert (report.peak, report.reserved) == (ORACLE[name]["peak"], ORACLE[name]["reserved"])
    assert bool(report.placeholder_values) == (not values)
    SAID[name](capsys.readouterr().out, report, values, path.parent)


def nano(out, report, values, folder):
    assert report.steps == 6
    assert values or [one.path for one in report.files if one.what == TENSORS] == ["out/ckpt.pt"]
    assert ("iter 5: loss 0.0000" in out) != values


def clm(out, report, values, folder):
    assert report.steps == 5
    assert ("perplexity              =        1.0" in out) != values
    assert values or "out/checkpoint-3/model.safetensors" in [one.path for one in report.files]
    kept = folder / "out" if values else folder / "kept" / "files" / "here" / "out"
    assert (kept / "all_results.json").exists() or (kept / "eval_results.json").exists()
    assert (folder / "out").exists() == values


def vision(out, report, values, folder):
    # with values GradScaler leaves out the steps whose gradients overflow
    assert (report.steps == 6 or values) and "Training time 0:00:00" in out and "Test: EMA Acc@1" in out
    assert values or report.files[0].path == "checkpoints/model_0.pth"


SAID = {"nano": nano, "clm": clm, "vision": vision}


def test_a_loop_that_waits_for_a_value_ends(tmp_path, monkeypatch):
    """Rejection sampling, as torch.distributions.VonMises does it: every stand-in is 0."""
    monkeypatch.setattr(placeholder_values, "IN_A_ROW", 50)
    path = tmp_path / "draws.py"
    path.write_text(
        "import torch\n"
        "accepted = torch.rand(4, device='cuda') < 2\n"
        "for _ in range(60):\n"
        "    accepted.sum().item()\n"
        "while not accepted.all():\n"
        "    accepted |= torch.rand(4, device='cuda') < 0.5\n"
    )
    report = simgpu.run(path, gpu="T4")
    assert report.status == 2
    assert "bool() was answered 50 times in a row at " in report.ended and "draws.py:5" in report.ended
    assert simgpu.run(path, gpu="T4", values=True).completed
