"""No command, page or notebook prints a simulated time with more than two digits, or calls one measured."""

import json
import re
import textwrap
from pathlib import Path

import pytest

from simgpu.command import main

ROOT = Path(__file__).parents[2]
TIME = re.compile(r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?) ?(µs|ms|s|seconds)\b(?![·/])")

NOT_SIMULATED = {
    ("14", "cell-14-069"): "bytes divided by a rate that the text gives",
    ("14b", "cell-14b-032"): "bytes divided by a rate that the text gives",
}
"""Cells that print times of more digits that are not the simulated clock's."""


def significant(number: str) -> int:
    """Returns the significant digits of a number as it is printed; zeros at the end of a whole number do not count."""
    text = number.replace(",", "")
    digits = text.replace(".", "").lstrip("0")
    return len(digits if "." in text else digits.rstrip("0"))


def too_exact(text: str) -> list[str]:
    """Returns the times in a text that have more than two significant digits."""
    return [found[0] for found in TIME.finditer(text) if significant(found[1]) > 2]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("139.5 ms", ["139.5 ms"]),
        ("about 140 ms, estimate; 110 to 220 ms", []),
        ("12,345 s and 0.0012 s", ["12,345 s"]),
        ("1.20 s, 12,000 µs", ["1.20 s"]),
        ("12345 tokens/s, 41 s·b·h, torch 2.13.0 says", []),
    ],
)
def test_digits_are_counted(text, found):
    assert too_exact(text) == found


def outputs(cell: dict) -> str:
    """Returns what a cell prints, as text."""
    parts = []
    for output in cell.get("outputs", ()):
        for one in (output.get("text", ""), output.get("data", {}).get("text/plain", "")):
            parts.append(one if isinstance(one, str) else "".join(one))
    return "\n".join(parts)


def test_no_notebook_prints_a_simulated_time_with_more_than_two_digits():
    found = set()
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code" and too_exact(outputs(cell)):
                found.add((path.name.split("_")[0], cell["id"]))
    assert found == set(NOT_SIMULATED)


TRAINS = """
    import torch
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range({steps}):
        model(torch.ones(8192, 1024, device="cuda")).sum().backward()
        optimizer.step()
"""
LLAMA = {"model_type": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2}


@pytest.fixture
def folder(tmp_path):
    for steps in (2, 3):
        text = textwrap.dedent(TRAINS.format(steps=steps))
        (tmp_path / f"{steps}.py").write_text(text, encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    return tmp_path


def printed(capsys, *arguments) -> list[str]:
    """Returns the lines of a command's standard output that have a time."""
    main([str(one) for one in arguments])
    return [line for line in capsys.readouterr().out.splitlines() if TIME.search(line)]


def test_commands_print_estimates_with_two_digits_and_a_range(capsys, folder):
    pytest.importorskip("transformers")
    plan = ("fit", folder / "config.json", "--batch", 8, "--gpu", "RTX 4090")
    lines = printed(capsys, *plan)
    assert any("A step takes about" in line and "tokens/s per GPU" in line and "MFU" in line for line in lines)
    for steps in (2, 3):
        lines += printed(capsys, "run", "--gpu", "H100", "--out", folder / f"out{steps}", folder / f"{steps}.py")
    lines += printed(capsys, "diff", folder / "out2", folder / "out3")
    assert len(lines) >= 6
    for line in lines:
        assert not too_exact(line) and "measured" not in line
        assert re.search(r"about [\d.,]+ (µs|ms|s), estimate; [\d.,]+( µs| ms| s)? to [\d.,]+ (µs|ms|s)", line), line
    techniques = printed(capsys, *plan, "--techniques")
    assert len(techniques) > 5 and not [line for line in techniques if too_exact(line)]


def test_html_has_the_same_words(folder, capsys):
    main(["run", "--gpu", "H100", "--out", str(folder / "out"), str(folder / "2.py")])
    html = (folder / "out" / "report.html").read_text(encoding="utf-8")
    line = re.search(r"the run takes about [^<]*", html)
    assert line is not None and "estimate; " in line[0] and not too_exact(line[0])


def test_no_page_has_a_time_of_the_clock_with_more_digits():
    """docs/times.md and docs/time_bias.md are written from the clock's times; published times have their own digits."""
    rows = (ROOT / "docs" / "times.md").read_text(encoding="utf-8").split("## Every row")[1].splitlines()[4:]
    clock = [row.split(" | ")[5] for row in rows if row.startswith("|")]
    assert len(clock) > 300 and not [one for one in clock if significant(one) > 2]
    assert not too_exact((ROOT / "docs" / "time_bias.md").read_text(encoding="utf-8"))
