"""The helper that draws padded batches: the share of text, and a rectangle for each batch and sequence."""

import pytest

import labkit
from helpers import padding

WAYS = {"shuffled": [(4, [4, 1]), (3, [1, 3])], "sorted": [(1, [1, 1]), (4, [3, 4])]}


def test_share_of_tokens_that_are_not_padding():
    assert padding.share(WAYS["shuffled"]) == pytest.approx(100 * 9 / 14)
    assert padding.share(WAYS["sorted"]) == pytest.approx(100 * 9 / 10)


def test_each_batch_and_sequence_is_drawn_to_scale():
    with labkit.simulated_gpu("A100-80GB"):
        figure = padding.plot(WAYS, "A title")
    drawn = sorted((bar.get_x(), bar.get_width(), bar.get_height()) for bar in figure.axes[0].patches)
    start = 4 + padding.GAP  # of the second way
    wanted = [(0, 2, 4), (0, 1, 4), (1, 1, 1), (2, 2, 3), (2, 1, 1), (3, 1, 3)]
    wanted += [(start, 2, 1), (start, 1, 1), (start + 1, 1, 1), (start + 2, 2, 4), (start + 2, 1, 3), (start + 3, 1, 4)]
    assert drawn == sorted(wanted)
    assert "64 % of the rectangles when shuffled" in figure.description
