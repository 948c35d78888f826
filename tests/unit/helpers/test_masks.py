"""What ways to mask attention allocate: the stored rows, and the table that chapter 08b makes of them."""

import pytest
import yaml

from helpers import masks
from tools import flex_attention


def test_every_run_of_the_command_is_stored():
    rows = yaml.safe_load(masks.STORED.read_text(encoding="utf-8"))["rows"]
    assert [(row["way"], row["tokens"]) for row in rows] == list(flex_attention.RUNS)
    assert all(row.keys() == {"way", "tokens", *flex_attention.FIELDS} for row in rows)


def test_a_block_mask_has_four_indices_per_block_and_four_counts_per_row_of_blocks():
    for tokens, blocks in ((4096, 32), (2**20, 8192)):
        expected = 4 * (4 * blocks**2 + 4 * blocks) / 2**20
        assert masks.table(tokens).loc["FlexAttention, compiled", "mask"] == pytest.approx(expected, abs=2e-3)


def test_compiled_attention_saves_no_scores_and_eager_attention_peaks_above_those_of_all_heads():
    table = masks.table()
    assert table.loc["FlexAttention, compiled", "saved"] == table.loc["variable lengths", "saved"]
    assert table.loc["FlexAttention, not compiled", "peak"] > 12 * 4096**2 * 4 / 2**20
    assert table["peak"].idxmin() == "FlexAttention, compiled"


def test_a_length_that_was_not_measured_is_refused():
    with pytest.raises(ValueError, match=r"no way was measured with 100 tokens; there are \[4096, 1048576\]"):
        masks.table(100)
