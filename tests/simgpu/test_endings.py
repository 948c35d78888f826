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
