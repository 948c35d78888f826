"""A ring all-reduce, played and drawn."""

import pytest

import labkit
from helpers import ring

BEFORE = [[{0}, {0}], [{1}, {1}]]
AFTER = [[{0, 1}, {0}], [{1}, {0, 1}]]


def test_the_figure_says_how_many_parts_are_sums_of_all_ranks_after_each_step():
    with labkit.simulated_gpu("A100-80GB"):
        figure = ring.plot([BEFORE, AFTER], "2 ranks")
    assert "0 after step 0, 2 after step 1" in figure.description
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("all") == 2 and sorted(texts)[:4] == ["0", "0", "0", "1"]


def test_after_twice_the_ranks_minus_two_steps_every_rank_has_every_sum():
    assert ring.around(2)[0] == BEFORE
    for ranks in (2, 3, 8):
        steps = ring.around(ranks)
        assert len(steps) == 1 + 2 * (ranks - 1)
        assert all(part == set(range(ranks)) for row in steps[-1] for part in row)
        sums = [sum(len(part) == ranks for row in held for part in row) for held in steps]
        assert sums[ranks - 1] == ranks  # then each rank has one part that is the sum of all


def test_steps_that_differ_in_ranks_or_parts_are_refused():
    with pytest.raises(ValueError, match="2 ranks with 2 parts"):
        ring.plot([BEFORE, BEFORE[:1]])
