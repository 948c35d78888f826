"""Experts and long context: what the ways to run experts agree on, and what ranks hold."""

import pytest
import torch

import labkit
from helpers import experts, long_context


@pytest.fixture
def small():
    torch.manual_seed(0)
    made = experts.Weights(3, 2, 8, 4)
    made.counts = [5, 4, 3]
    with torch.no_grad():
        for one in made.parameters():
            one.normal_()
    return made


def test_boxes_that_are_large_enough_agree_with_the_loop(small):
    rows = torch.randn(12, 8)
    assert torch.allclose(experts.boxes(1.25)(small, rows), experts.loop(small, rows), atol=1e-5)


def test_rows_beyond_the_capacity_are_zero(small):
    rows = torch.randn(12, 8)
    whole, cut = experts.loop(small, rows), experts.boxes(1.0)(small, rows)
    assert not cut[4].any()  # the first expert's fifth row
    kept = torch.arange(12) != 4
    assert torch.allclose(cut[kept], whole[kept], atol=1e-5)


def test_an_update_of_a_rank_is_divided_by_the_ranks():
    with labkit.simulated_gpu("A100-80GB"):
        one, four = experts.granite_update(1), experts.granite_update(4)
    assert 3.8 < one / four < 4.1


@pytest.mark.filterwarnings("ignore")
def test_a_rank_of_a_context_group_holds_all_states_and_needs_less_for_its_tokens():
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with labkit.simulated_gpu("A100-80GB"):
            alone, part = (long_context.as_rank(8192, of) for of in (1, 4))
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
    assert abs(part.held - alone.held) < 16 * labkit.MiB
    assert part.peak < alone.peak
    assert (alone.sent, part.sent > 0) == (0, True)
