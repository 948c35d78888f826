"""The stored whole ranks of chapters 19b and 22, and the table that shows them."""

import pytest

from helpers import large_runs
from helpers.plans import MODELS, Plan, peak
from labkit import published
from tools import large_runs as command


def test_the_stored_rows_are_those_that_the_command_runs():
    names = ("checkpointing", "sequences", "gpus", "chunked")
    assert [tuple(one[name] for name in names) for one in large_runs.rows("8B")] == command.EIGHT
    for one in (*large_runs.rows("8B"), *large_runs.rows("ranks")):
        assert one["peak"] < one["expandable"] <= one["reserved"]


def test_the_row_of_torchtitan_is_near_its_published_memory():
    for gpus in (8, 128):
        row = large_runs.row(checkpointing="selective", sequences=2, gpus=gpus, chunked=False)
        printed = float(published.find("torchtitan-8b", f"{gpus} GPUs").mib) * 2**20
        assert row["reserved"] == pytest.approx(printed, rel=0.01)


def test_stored_ranks_are_near_their_plans_estimates():
    for one in large_runs.rows("ranks"):
        assert one["peak"] == pytest.approx(peak(MODELS[one["model"]], Plan(**one["plan"])), rel=0.15)


@pytest.mark.parametrize(
    ("default", "expandable", "said"),
    [(0, 0, "yes"), (2, 1, "after retries"), (None, 1, "expandable only"), (None, None, "no")],
)
def test_what_fits(default, expandable, said):
    assert large_runs.fits({"retries": {"default": default, "expandable": expandable}}) == said


def test_the_table_has_torchtitans_figures_last():
    table = large_runs.table_8b()
    assert list(table.columns) == list(large_runs.COLUMNS)
    assert len(table) == len(command.EIGHT) + 2
    assert list(table.loc["torchtitan: selective, 2, 8 GPUs"]) == ["", "82.4", "", "96 GB cards", "5,762"]


def test_a_row_that_is_not_stored_is_refused():
    with pytest.raises(LookupError, match=r"0 rows have \{.gpus.: 3\}, one was wanted"):
        large_runs.row(gpus=3)


def test_the_holes_are_the_largest_with_expandable_segments():
    assert large_runs.holes() == max(one["expandable"] - one["peak"] for one in large_runs.rows("ranks"))
    assert len(large_runs.table_of_ranks()) == len(large_runs.rows("ranks"))


def test_the_command_finds_the_chapters_cells(tmp_path):
    names = command.chapter()
    assert callable(names["titan"]) and issubclass(names["ChunkedLlama"], names["models"].Llama)
    path = tmp_path / "empty.ipynb"
    path.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"empty\.ipynb has no cell with the tag 'large-runs'"):
        command.cells(path)


@pytest.mark.filterwarnings("ignore")
def test_a_row_of_few_layers_is_measured(monkeypatch):
    names = command.chapter()
    whole = names["titan"]
    monkeypatch.setitem(names, "titan", lambda layers, *args, **how: whole(1, *args, **how))
    one, chunked = (command.of_8b(names, "full", 1, 8, chunks) for chunks in (False, True))
    assert one["retries"] == {"default": 0, "expandable": 0}
    assert 0 < chunked["peak"] < one["peak"] <= one["reserved"]
    assert one["seconds"] > 0
