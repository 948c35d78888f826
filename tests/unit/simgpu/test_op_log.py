"""SIMGPU_DEBUG=ops prints which rule fired for each operator on the simulated GPU."""

import re

import pytest
import torch

import simgpu
from simgpu.dispatch import op_log


def lines(capsys):
    return [
        line.removeprefix("simgpu: ") for line in capsys.readouterr().err.splitlines() if line.startswith("simgpu: ")
    ]


def test_each_operator_has_a_line_with_its_rule_its_bytes_and_its_stages(monkeypatch, capsys):
    monkeypatch.setenv(op_log.VARIABLE, "ops")
    with simgpu.simulated_gpu("T4"):
        x = torch.ones(4, 256, device="cuda", requires_grad=True)  # so that the mask is saved
        capsys.readouterr()
        before = torch.cuda.memory_allocated()
        y = torch.nn.functional.dropout(x, 0.5)
        added = torch.cuda.memory_allocated() - before
        host = torch.ones(3) + 1
    (line,) = lines(capsys)
    assert re.match(r"aten::native_dropout  \w+ \(simgpu/ops/\w+\.py:\d+\): ", line)
    line, stages = line.split("; ")
    assert line.endswith(f"{added:,} B allocated, +{added:,} B after the call")
    assert stages == "place → check → leave_to_torch → shapes → allocate → time → follow_values"
    assert y.shape == x.shape and host.sum() == 6


def test_the_parts_of_a_decomposed_operator_follow_it(monkeypatch, capsys):
    monkeypatch.setenv(op_log.VARIABLE, "other,ops")
    with simgpu.simulated_gpu("T4"):
        weight, tokens = torch.ones(10, 8, device="cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
        capsys.readouterr()
        torch.nn.functional.embedding(tokens, weight)
    whole, part = lines(capsys)
    assert whole.startswith("aten::embedding  is made of other operators by ")
    assert part.startswith("  aten::index_select  ")


@pytest.mark.parametrize("value", [None, "", "op", "opsx"])
def test_nothing_is_printed_otherwise(monkeypatch, capsys, value):
    monkeypatch.delenv(op_log.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(op_log.VARIABLE, value)
    with simgpu.simulated_gpu("T4"):
        torch.ones(4, device="cuda") * 2
    assert lines(capsys) == []
