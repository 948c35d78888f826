"""The snippets of README.md and of pages for readers run as they stand, and print what the page says they print.

A fenced block is run where a comment stands before it: `<!-- run -->` (Python, or a console with `$ simgpu ...`),
`<!-- test -->` (by pytest, with the plugin), `<!-- file: NAME -->` (written for what follows). A `text` block after
one that is run is what it prints. In what is printed, a line of three dots stands for any lines.
"""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

import pytest

from simgpu import command
from tests.pinned import of_pinned_torch

ROOT = Path(__file__).parents[2]
NAMED = {one.value for each in distributions() for one in each.entry_points if one.group == "pytest11"}
PLUGIN = () if "simgpu.pytest_plugin" in NAMED else ("-p", "simgpu.pytest_plugin")  # installed, an entry point names it
PAGES = ("README.md", "docs/instrument.md")
BLOCK = re.compile(r"^<!-- (run|test|file: (\S+)) -->\n```(\w+)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)


class Snippet(NamedTuple):
    what: str
    name: str | None
    language: str
    code: str
    printed: str | None


def snippets(page):
    found = [Snippet(*groups) for groups in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))]
    return [one._replace(name=one.name or None, printed=one.printed or None) for one in found]


def fits(printed, wanted):
    """Whether text is what a page shows; a line `...` there stands for any lines."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in wanted.splitlines())
    lines = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch(pattern, lines) is not None


def run(snippet, capsys):
    """Runs a snippet in the current folder; what it prints, and what the page says."""
    if snippet.language == "console":
        asked, _, wanted = snippet.code.partition("\n")
        program, *arguments = shlex.split(asked.removeprefix("$ "))
        assert program == "simgpu"
        capsys.readouterr()
        assert command.main(arguments) == 0
        return capsys.readouterr().out, wanted
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(snippet.code, "a snippet", "exec"), {"__name__": "__main__"})
    return printed.getvalue(), snippet.printed


@of_pinned_torch
@pytest.mark.parametrize("page", PAGES)
def test_snippets_do_what_the_page_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = snippets(page)
    assert found
    for snippet in found:
        if snippet.what.startswith("file"):
            Path(snippet.name).write_text(snippet.code, encoding="utf-8")
        elif snippet.what == "test":
            (tmp_path / "test_page.py").write_text(snippet.code, encoding="utf-8")
            ask = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGIN, "test_page.py"]
            done = subprocess.run(ask, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            printed, wanted = run(snippet, capsys)
            assert wanted is None or fits(printed, wanted), f"{snippet.code}\nprints\n{printed}\nthe page has\n{wanted}"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_python_is_run(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count("\n```python\n") == sum(one.language == "python" for one in snippets(page)) > 0


def test_three_dots_stand_for_lines():
    assert fits("a\nb\nc\n", "a\n...\nc\n") and fits("a\n", "...\na\n...\n")
    assert not fits("a\nb\n", "a\n") and not fits("a\nb\n", "a\n...\nc\n")


# --- figures of README.md -------------------------------------------------------------------------------


def rows_of(page):
    """The rows of every table of a page, as lists of texts."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return [[text.strip() for text in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def test_the_headline_figures_are_those_of_the_comparisons():
    page = json.loads((ROOT / "docs" / "exactness.json").read_text(encoding="utf-8"))
    items = {result["result"]: result["items"] for result in page["results"]}
    peaks = items["peaks, A100-80GB"], items["peaks, H100"]
    (samples,) = (one for one in items["op_db, H100"] if one[0] == "op-float32-plain-small")
    streams, smi = items["recordings of a real GPU"], items["bert-large with Trainer, V100-16GB"]
    assert {len(one) for one in peaks} == {len(peaks[0])} and all(one[1] == one[2] for each in peaks for one in each)
    assert all(one[1] == one[2] for one in streams)
    off = [abs(one[-1]["nvidia-smi (MiB)"] / one[-1]["published (MiB)"] - 1) for one in smi]
    assert max(off) < 0.03
    begins = {
        f"peaks of {len(peaks[0])} programs": "all",
        f"PyTorch's own samples of {samples[1]} operators": f"{samples[2]};",
        f"{len(streams)} recordings of a real GPU": "all",
        f"{len(smi)} figures of nvidia-smi": str(sum(one < 0.02 for one in off)),
    }
    rows = rows_of("README.md")
    for what, equal in begins.items():
        assert [row[2].split()[0].rstrip(",") for row in rows if row[0].startswith(what)] == [equal], what


def test_no_run_of_ours_is_claimed_before_there_is_one():
    recorded = "No GPU has been recorded yet" not in (ROOT / "recordings" / "README.md").read_text(encoding="utf-8")
    (said,) = (row[2] for row in rows_of("README.md") if row[0] == "**a GPU run of ours**")
    assert ("none yet" in said) != recorded


def test_sizes_of_downloads_are_the_same_on_both_pages():
    """README.md says what to download, docs/setting_up.md what it is."""
    short = {row[0]: row[-1] for row in rows_of("README.md") if row[0].startswith(("Linux", "macOS", "Windows"))}
    assert len(short) == 5
    assert short.items() <= {row[0]: row[-1] for row in rows_of("docs/setting_up.md")}.items()
