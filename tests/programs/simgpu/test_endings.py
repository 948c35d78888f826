"""What the report says of a program that ended with an error."""

import pytest

import simgpu


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("one\ntwo", "RuntimeError: one"),
        (
            "Failed to import x because of:\nNo module named y",
            "RuntimeError: Failed to import x because of: No module named y",
        ),
        ("backend raised:\n\n  ImportError: z\nmore", "RuntimeError: backend raised: ImportError: z"),
        ("nothing follows:", "RuntimeError: nothing follows:"),
        ("", "RuntimeError:"),
    ],
)
def test_a_cause_in_the_next_line_is_part_of_what_is_said(tmp_path, message, said):
    path = tmp_path / "train.py"
    path.write_text(f"raise RuntimeError({message!r})")
    report = simgpu.run(str(path), engine="meta")
    assert report.status == 2 and report.ended == said


@pytest.mark.parametrize(
    ("error", "hinted"), [("open('nowhere.bin')", False), ("import nowhere", False), ("1 / 0", True)]
)
def test_values_are_named_only_for_an_error_that_they_may_cause(tmp_path, error, hinted):
    path = tmp_path / "train.py"
    path.write_text(f"import torch\nprint(torch.rand(4, device='cuda').sum().item())\n{error}")
    report = simgpu.run(str(path), engine="meta")
    assert report.status == 2 and ("in place of values" in report.ended) == hinted


STEPS = """
import sys, torch
weight = torch.nn.Parameter(torch.ones(1024, device="cuda"))
optimizer = torch.optim.SGD([weight])
def train():
    for _ in range(4):
        weight.sum().backward()
        optimizer.step()
try:
    train()
except BaseException as error:
    {then}
"""


@pytest.mark.parametrize(
    ("then", "later"),
    [("sys.exit(1)", "status 1"), ("raise RuntimeError('no')", "RuntimeError: no"), ("pass", "")],
)
def test_a_program_that_catches_its_end_at_the_limit_did_not_fail(tmp_path, then, later):
    path = tmp_path / "train.py"
    path.write_text(STEPS.format(then=then))
    report = simgpu.run(str(path), engine="meta", steps=2)
    caught = f" The program caught that, and ended later with {later}." if later else ""
    assert (report.status, report.steps) == (0, 2)
    assert report.ended == f"Ended after 2 optimizer steps, as --steps says.{caught}"


def test_an_error_of_memory_after_the_limit_is_one(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(STEPS.format(then="torch.empty(2**40, device='cuda')"))
    assert simgpu.run(str(path), engine="meta", steps=2).status == 1
