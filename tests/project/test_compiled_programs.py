"""docs/compiled_programs.md says what docs/compiled_programs.json says, and a report is summed up as it is."""

from dataclasses import replace

import pytest

import simgpu
from tools import compiled_programs


def test_the_page_is_written_from_the_file():
    page = compiled_programs.PAGE.read_text(encoding="utf-8")
    assert page == compiled_programs.page(), "run: python -m tools.compiled_programs"


def test_a_record_names_its_source_and_why_it_ended_otherwise():
    rows = compiled_programs.stored()
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        assert len(row["commit"]) == 40 and row["uses"], row["name"]
        if "here" in row:
            assert row["here"]["status"] == 0 or row["why"], f"{row['name']} ended otherwise, and no reason is given"


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch\nx = torch.ones(1000, 1000, device='cuda')\ny = x + x\ndel x")
    return simgpu.run(str(path), engine="meta")


def test_a_report_is_summed_up(report):
    found = compiled_programs.summary_of(report)
    assert (found["status"], found["outcome"], found["peak"]) == (0, "fits", report.peak)
    assert found["lines"] == 1 and found["compiled"] == [0, 0] and found["adds_up"]
    lines = [replace(report.lines[0], place="", operator="compiled add"), *report.lines[1:]]
    found = compiled_programs.summary_of(replace(report, lines=tuple(lines)))
    assert found["lines"] == pytest.approx(0.5) and found["compiled"] == [1, 0]
