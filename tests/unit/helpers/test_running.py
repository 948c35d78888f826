"""The running model: its two peaks, and the stored bars, which are those that the chapters measure."""

import re

import nbformat
import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from helpers import budget, running
from labkit import mib
from tools import budget as command

BARS = {row["chapter"]: row for row in running.stored()["bars"]}
CHAPTERS = {path.name[:2]: path for path in command.chapters()}


@pytest.fixture
def small(monkeypatch):
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    monkeypatch.setattr(running, "SHAPE", running.SHAPE | sizes | {"num_attention_heads": 4})
    monkeypatch.setattr(running, "BATCH", (4, 32))


def printed(chapter):
    """The text of the stored output of the chapter's last tagged cell."""
    cells = [cell for cell in nbformat.read(CHAPTERS[chapter], as_version=4).cells if cell.cell_type == "code"]
    last = [cell for cell in cells if command.TAG in cell.metadata.get("tags", [])][-1]
    texts = [output.get("text") or output["data"]["text/plain"] for output in last.outputs]
    return re.sub(r"\s+", " ", " ".join(texts))


def test_each_chapter_with_a_tagged_cell_has_a_stored_bar():
    assert list(BARS) == list(CHAPTERS)


@pytest.mark.parametrize("chapter", [name for name in CHAPTERS if name != "00"])
def test_the_stored_bars_are_those_of_the_chapters_chart(chapter):
    for row in BARS.values():
        if row["chapter"] <= chapter:
            name = f"{row['chapter']} · {row['technique']}"
            assert f"{name}: {mib(row['backward'])} and {mib(row['step'])}" in printed(chapter)


def test_the_bars_are_those_of_chapter_00_with_the_techniques_that_it_shows():
    notebook = nbformat.read(CHAPTERS["00"], as_version=4)
    texts = [
        output.get("data", {}).get("text/plain", "") for cell in notebook.cells for output in cell.get("outputs", [])
    ]
    figure = next(text for text in texts if "whole batch: " in text)
    for name, chapter in (("whole batch", "00"), ("micro-batches of 1", "09"), ("+ checkpointing", "10")):
        shown = re.search(rf"{re.escape(name)}: ([\d.]+) MiB and ([\d.]+) MiB", figure)
        assert shown is not None
        stored = BARS[chapter]["backward"] / 2**20, BARS[chapter]["step"] / 2**20
        assert [float(peak) for peak in shown.groups()] == pytest.approx(stored, abs=0.002)  # a block or two of 512 B


def build():
    model = running.model()
    return model, torch.optim.SGD(model.parameters())


def whole_batch(model, optimizer, batch):
    model(batch, labels=batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def in_micro_batches(model, optimizer, batch):
    running.micro_batches(model, batch)
    optimizer.step()
    optimizer.zero_grad()


def test_the_two_peaks_of_a_step(small):
    backward, step = running.measure(build, whole_batch)
    micro, _ = running.measure(build, in_micro_batches)
    assert 0 < step < backward  # SGD allocates nothing, and the activations have been freed
    assert micro < backward


def test_a_step_without_an_optimizer_is_refused_and_leaves_no_hook(small):
    before = len(_global_optimizer_pre_hooks)
    with pytest.raises(ValueError, match="the step called no optimizer"):
        running.measure(build, lambda model, optimizer, batch: running.micro_batches(model, batch))
    assert len(_global_optimizer_pre_hooks) == before


def test_a_bar_has_the_number_of_its_chapter_and_replaces_itself():
    chart = running.budget("10")
    earlier = list(chart.rows)
    assert earlier == [f"{number} · {BARS[number]['technique']}" for number in ("00", "09")]
    chart.add("checkpoints", 2, 1)
    chart.add("checkpoints", 3, 1)
    assert list(chart.rows) == [*earlier, "10 · checkpoints"]
    alphas = [bar.get_alpha() for bar in chart.plot().axes[0].patches]
    assert alphas == [0.4, 0.4, 1, 0.4, 0.4, 1]


def test_a_waterfall_says_what_each_technique_leaves():
    figure = budget.waterfall({"whole": 30 * 2**20, "+ less": 10 * 2**20}, "T4", 20 * 2**20)
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == [30, 10, 20]


def test_the_stub_engine_measured_the_bar_of_chapter_12_to_the_byte():
    eager = next(one for one in running.stored()["compiled"] if (one["gpu"], one["way"]) == ("T4", "eager"))
    assert (eager["backward"], eager["step"]) == (BARS["12"]["backward"], BARS["12"]["step"])


def test_the_table_of_compiled_peaks_is_the_stored_one():
    table = running.compiled("A100-80GB")
    assert list(table) == list(command.WAYS)
    assert table["compiled"]["forward and backward"] < table["eager"]["forward and backward"]
