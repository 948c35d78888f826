"""Every row of recordings/published_times.yaml is of the described form, has its origin, and belongs to one half."""

import re
from collections import Counter
from dataclasses import astuple, fields, replace

import pytest

from simgpu.gpus.specs import SPECS
from tools.times import published
from tools.times.published import Row

ROWS = published.rows()
SIZES = ("gpus", "watts", "parameters", "batch", "accumulation", "global_batch", "tokens", "image")
ALWAYS = ("source", "half", "file", "work", "gpu", "gpus", "library", "model", "unit")
NAMED = {
    "half": published.HALVES,
    "work": published.WORK,
    "unit": published.UNITS,
    "precision": published.PRECISIONS,
    "mode": published.MODES,
    "checkpointing": published.CHECKPOINTING,
    "attention": ("eager", "sdpa", "flash"),
    "layout": ("channels last", "contiguous"),
}


def test_there_are_enough_rows_of_enough_sources():
    assert len(ROWS) >= 300 and len(published.sources()) >= 15
    assert max(Counter(row.source for row in ROWS).values()) <= 60


def wrong_fields(row):
    """Returns the names of the fields of a row that are not of the described form."""
    wrong = [name for name, allowed in NAMED.items() if getattr(row, name) not in (*allowed, None)]
    wrong += [name for name in SIZES if getattr(row, name) is not None and not is_size(getattr(row, name))]
    texts = {field.name for field in fields(Row)} - {*SIZES, "figure"}
    wrong += [name for name in texts if not isinstance(getattr(row, name), str | None)]
    wrong += [name for name in ALWAYS if getattr(row, name) is None]
    if type(row.figure) not in (int, float) or row.figure <= 0:
        wrong.append("figure")
    if row.gpu not in {*SPECS, *published.FAMILIES, *published.UNKNOWN}:
        wrong.append("gpu")
    return wrong


def is_size(value):
    return type(value) is int and value > 0


def test_every_row_is_of_the_described_form():
    assert {name for row in ROWS for name in wrong_fields(row)} == set()


def test_a_row_of_another_form_is_found():
    assert wrong_fields(row()) == []
    assert wrong_fields(row(figure=-1, batch=0, gpu="H900", unit="minutes")) == ["unit", "batch", "figure", "gpu"]
    assert wrong_fields(row(work=None)) == ["work"]
    with pytest.raises(TypeError, match="speed"):
        row(speed=3)


def test_no_row_is_there_twice():
    keys = Counter(astuple(replace(row, figure=0)) for row in ROWS)
    assert not [key for key, count in keys.items() if count > 1]
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("source", published.sources().values(), ids=lambda source: source.name)
def test_a_source_has_its_origin_and_how_its_rows_were_chosen(source):
    assert source.url.startswith("https://github.com/") and re.fullmatch("[0-9a-f]{40}", source.commit)
    assert source.licence and source.what and source.order
    kept = [row for row in ROWS if row.source == source.name]
    if source.every is not None:
        assert len(kept) == -(-source.candidates // source.every)
    assert {row.file for row in kept} <= set(source.files)
    for file in source.files.values():
        assert set(file) <= {"path", "date", "commit", "same"} and file["path"]
        assert file["date"] is None or re.fullmatch(r"20\d\d-\d\d(-\d\d)?", file["date"])


def test_the_halves_are_drawn_by_names_and_balanced():
    sources = published.sources()
    for salt in range(published.SALT):
        assert not published.is_balanced({name: published.half(one, salt) for name, one in sources.items()}, ROWS)
    assert published.is_balanced(published.halves(), ROWS)
    assert all(published.halves()[name] == "fit" for name, one in sources.items() if one.used_before)


def row(**changes):
    """Returns a row of 8 GPUs, each with 2 samples of 500 tokens in a step of one second, with changes."""
    names = {"source": "s", "half": "fit", "file": "f", "library": "l", "model": "m", "unit": "tokens/s/GPU"}
    values = {"work": "training", "gpu": "H100", "gpus": 8, "batch": 2, "tokens": 500, "figure": 1000}
    return Row(**(names | values | changes))


def test_the_seconds_of_a_step():
    assert row().seconds == 1
    assert row(accumulation=3).seconds == 3
    assert row(parallelism="FSDP 4, TP 2").seconds == 0.5
    assert row(global_batch=64).seconds == 4
    assert row(unit="ms/step").seconds == 1
    assert row(unit="samples/s", figure=8).seconds == 2
    assert row(unit="tokens/s", gpus=1).seconds == 1
    assert row(unit="tokens/s", work="decoding", figure=50).seconds == 0.02


def test_seconds_are_not_guessed():
    assert row(batch=None).seconds is None
    assert row(tokens=None).seconds is None
    assert row(unit="tokens/s").seconds is None  # of one GPU or of all


def test_the_gpu_to_simulate():
    assert row(gpu="V100").simulated_gpu == "V100-16GB"
    assert row(gpu="H100").simulated_gpu == "H100"
    assert row(gpu="B300").simulated_gpu is None
    assert [row(work=work).kind for work in published.WORK] == ["training"] * 4 + ["inference"] * 3
