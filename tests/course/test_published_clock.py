"""docs/published_times.json holds the clock's readings of the half "fit" alone, and the clock still gives them."""

import pytest

from tools.times import fitted, published, published_clock, published_shards

ROWS = {row.name: row for row in published.rows()}


def test_only_rows_that_may_be_fitted_are_stored():
    stored = fitted.stored()
    assert {one.row.half for one in stored} == {"fit"}
    names = {one.row.name for one in stored}
    assert names <= {row.name for row in published_clock.buildable("fit")}
    assert len(names) > 60 and all(one.reading.seconds > 0 and one.reading.busy > 0 for one in stored)


def test_both_halves_have_models_of_both_kinds():
    for half in published.HALVES:
        assert {row.kind for row in published_clock.buildable(half)} == {"training", "inference"}


def test_a_row_without_a_model_is_not_built():
    row = next(row for row in ROWS.values() if row.source == "detectron2")
    assert not published_clock.can_be_built(row)
    with pytest.raises(ValueError, match="can be built: detectron2"):
        published_clock.measure(row)


def test_the_shapes_of_mpt_have_the_published_number_of_parameters():
    checked = set()
    for row in ROWS.values():
        if published_shards.builder(row) is published_shards.gpt:
            width, layers, _ = published_shards.SHAPES[row.model]
            norms, block = 2 * 2 * width, 12 * width**2 + 9 * width
            ends = (published_shards.VOCABULARY + row.tokens) * width + 2 * width
            assert layers * (block + norms) + ends == row.parameters
            checked.add(row.model)
    assert len(checked) >= 5


def test_the_table_summarizes_by_kind_mode_and_gpu():
    rows = [row for row in ROWS.values() if row.source == "ml-engineering" and row.kind == "inference"][:2]
    assert [row.mode for row in rows] == ["eager", "compiled"]
    lines = published_clock.table(zip(rows, (0.5, 2), strict=True)).splitlines()
    assert lines[2:] == [
        "| fit | inference | all | all | 2 | 1.25 | 75% | 0.50 | 2.00 |",
        "| fit | inference | compiled | Hopper and Blackwell | 1 | 2.00 | 100% | 2.00 | 2.00 |",
        "| fit | inference | eager | Hopper and Blackwell | 1 | 0.50 | 50% | 0.50 | 0.50 |",
    ]


def stored_row(*words):
    return next(one for one in fitted.stored() if all(word in one.row.name for word in words))


@pytest.mark.filterwarnings("ignore::simgpu.IncompleteEstimateWarning")
def test_the_clock_still_gives_the_stored_reading():
    """With a model that needs neither timm nor torchvision."""
    one = stored_row("ml-engineering", "inference", "1B", "eager")
    assert published_clock.measure(one.row).reading[:3] == pytest.approx(one.reading[:3], rel=0.03)


@pytest.mark.filterwarnings("ignore::simgpu.IncompleteEstimateWarning")
def test_a_step_is_linear_in_the_layers(monkeypatch):
    """So two shallow models give the time of a deep one, whose time from 6 and 10 layers is stored."""
    monkeypatch.setattr(published_shards, "LAYERS", (1, 2))
    one = stored_row("MPT 350m")
    assert published_clock.measure(one.row).reading.seconds == pytest.approx(one.reading.seconds, rel=0.05)
