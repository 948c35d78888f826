"""The factors on the clock's times are what the stored readings give, and docs/time_bias.md says what they explain."""

import dataclasses
import json
import math

import pytest

from simgpu.clock import estimates
from simgpu.clock.clock import Reading
from simgpu.clock.estimates import HOST, INFERENCE, NEW, TRAINING, Factor
from tools.times import fitted, inductor, pairs, published, time_bias
from tools.times.fitted import Compared
from tools.times.inductor import Counts, Step
from tools.times.published import Row


def row(source="s", work="training", figure=1.0, **changes):
    values = {"gpu": "H100", "gpus": 1, "library": "l", "model": "m", "unit": "samples/s", "batch": 2}
    return Row(source=source, half="fit", file="f", work=work, figure=figure, **(values | changes))


def compared(ratio, source="s", issuing=0.1, **changes):
    """Returns a row whose published time is `ratio` times the clock's, which is 1 s."""
    return Compared(row(source, figure=2 / ratio, **changes), Reading(1.0, 1.0, issuing))


def test_the_stored_factors_and_the_page_are_written_by_the_command():
    found = fitted.fit(fitted.stored())
    assert tuple(found) == estimates.factors(), "run: python -m tools.times.fitted"
    text = time_bias.page(fitted.stored(), found)
    assert time_bias.PAGE.read_text(encoding="utf-8") == text, "run: python -m tools.times.fitted"


def test_each_source_counts_once():
    ratios = {"many": [1.0] * 50, "one": [2.0], "another": [3.0]}
    found = fitted.fitted(TRAINING, "", ratios)
    assert (found.middle, found.rows, found.sources) == (2.0, 52, 3)
    assert found.low < 1.0 < 3.0 < found.high


def test_a_wider_scatter_gives_a_wider_range():
    near, far = (fitted.fitted(TRAINING, "", {"a": [1.0, x], "b": [x]}) for x in (1.1, 2.0))
    assert far.high / far.low > near.high / near.low > 1


def test_a_class_with_few_rows_has_the_factor_of_all():
    rows = [compared(1.5, source) for source in "abe" for _ in range(4)]
    rows += [compared(1.2, "c", gpu="T4"), compared(1.1, "c", work="inference"), compared(3.0, "d", issuing=0.9)]
    found = fitted.fit(rows)
    assert [(one.work, one.gpus) for one in found] == [(TRAINING, NEW), (TRAINING, ""), (INFERENCE, ""), (HOST, "")]
    assert found[0].middle == 1.5 and found[0].rows == 12
    assert found[-1].rows == 2 and found[-1].sources == 2  # the row, and the host of the book


def test_gpu_and_host_are_fitted_to_rows_that_they_limit():
    assert time_bias.limit_of(compared(1, issuing=0.3)) == "GPU"
    assert time_bias.limit_of(compared(1, issuing=0.45)) == "between"
    assert time_bias.limit_of(compared(1, issuing=0.6)) == "host"
    assert compared(1.6, issuing=0.6).on_host == pytest.approx(2.0)


KNOWN = (
    Factor(TRAINING, "", 9, 2, 1.0, 2.0, 3.0),
    Factor(INFERENCE, "", 9, 2, 1.0, 2.0, 3.0),
    Factor(HOST, "", 9, 2, 1.0, 1.0, 1.0),
)


def test_a_summary_counts_what_is_inside_the_range():
    rows = [compared(2.5), compared(4)]
    (one,) = [one for one in time_bias.summaries(rows, KNOWN) if (one.limit, one.gpus) == ("GPU", NEW)]
    assert (one.rows, one.covered, one.width) == (2, 0.5, 3.1)
    assert one.clock == pytest.approx((0.6 + 0.75) / 2) and one.estimate == pytest.approx((0.2 + 0.5) / 2, abs=1e-3)


def test_pairs_differ_in_one_way_and_by_more_than_a_twentieth():
    eager, compiled = compared(2.0, mode="eager"), compared(1.0, mode="compiled")
    (pair,) = pairs.pairs([eager, compiled], KNOWN)
    assert pair.way == "eager or compiled" and pair.what.endswith("eager → compiled")
    assert (pair.published, pair.clock, pair.right) == (2.0, 1.0, False)
    assert pair.apart is False
    assert pairs.pairs([eager, compared(1.95, mode="compiled")], KNOWN) == []
    assert pairs.pairs([eager, compared(1.0, mode="compiled", model="another")], KNOWN) == []


def test_speeds_of_different_numbers_of_gpus_are_compared_per_gpu():
    few, many = (compared(1.0, gpus=gpus, unit="ms/step") for gpus in (8, 128))
    slower = Compared(row(gpus=128, unit="ms/step", figure=4000.0), few.reading)
    quicker = Compared(row(gpus=8, unit="ms/step", figure=1000.0), few.reading)
    (pair,) = pairs.pairs([quicker, slower], KNOWN)
    assert pair.published == 0.25 and pair.way == "8 or 128 GPUs"
    assert many.real == few.real


def test_the_half_that_is_kept_out_has_no_time_of_a_row():
    stored = time_bias.KEPT_OUT.read_text(encoding="utf-8")
    names = {one.name for one in published.rows()} | {one.model for one in published.rows()}
    assert not [name for name in names if json.dumps(name)[1:-1] in stored]
    found = time_bias.kept_out()
    assert found["rows"] >= 80 and {one["work"] for one in found["kinds"]} == {TRAINING, INFERENCE}
    assert [Factor(**one) for one in found["factors"]] == list(estimates.factors()), "run published_clock --kept-out"


def test_stated_ranges_cover_four_fifths_of_the_rows_that_are_kept_out():
    kinds = [time_bias.Summary(**one) for one in time_bias.kept_out()["kinds"]]
    enough = [one for one in kinds if one.rows >= time_bias.FEW and one.limit != "between"]  # its rows are few
    assert {(one.work, one.gpus) for one in enough if one.limit == "all"} >= {(TRAINING, "all"), (INFERENCE, "all")}
    assert {f"{one.work}, {one.limit}, {one.gpus}" for one in enough if one.covered < 0.8} == set()


def test_the_pairs_of_other_programs_are_published():
    found = pairs.others()
    assert {one.way for one in found} >= {"without or with checkpointing", "eager or compiled"}
    assert all(math.isfinite(one.clock) and one.apart is None for one in found)


def of_depth(*values):
    return Step("a row", (), Reading(*values[:4]), values[4:9], Counts(*values[9:]))


def test_a_step_of_all_layers_is_on_the_line_through_two_depths():
    few, more = of_depth(*map(float, range(15))), of_depth(*map(float, range(2, 17)))
    assert inductor.of_layers(few, more, (2, 4), 2) == dataclasses.replace(few, depths=(2, 4))
    assert inductor.of_layers(few, more, (2, 4), 32) == dataclasses.replace(
        of_depth(*(value + 30.0 for value in range(15))), depths=(2, 4)
    )


def test_steps_of_compiled_rows_are_stored_without_a_time_that_is_kept_out():
    steps, kept_out = inductor.stored()
    fit = {one.row.name: one for one in fitted.stored()}
    assert steps and {one.row for one in steps} <= fit.keys()
    assert all((fit[one.row].row.mode or "").startswith("compiled") for one in steps)
    assert all(
        one.counts.kernels + one.counts.replays > 0 and one.counts.masked <= one.counts.attentions for one in steps
    )
    assert all(published.halves()[one.source] == "kept out" for one in kept_out)


def test_rows_with_a_step_have_the_stub_engines_clock():
    rows = [compared(1.0, mode="compiled"), compared(1.0, mode="eager")]
    step = Step(rows[0].row.name, (), Reading(2.0, 2.0, 0.1), (1.0,), Counts())
    first, second = time_bias.with_launches(rows, [step])
    assert (first.reading.seconds, first.parts) == (2.0, (1.0,)) and second is rows[1]
