"""Layers that are cut, counted and drawn, and the formula of what a cut layer keeps."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import labkit
from helpers import layer_bytes, splits

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")


def plan():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return {"up": ColwiseParallel(), "down": RowwiseParallel()}


def layers():
    up, down = nn.Linear(16, 64), nn.Linear(64, 16, bias=False)
    return nn.ModuleDict({"up": up, "down": down, "norm": nn.LayerNorm(16)})


@pytest.fixture
def cut():
    with labkit.simulated_gpu("A100-80GB"), labkit.one_rank(1, of=4):
        dist.init_process_group("nccl")
        yield splits.build(layers, plan())


def test_a_rank_has_its_part_and_never_the_whole(cut):
    assert {name: tuple(one.to_local().shape) for name, one in cut.named_parameters() if "norm" not in name} == {
        "up.weight": (16, 16),
        "up.bias": (16,),
        "down.weight": (16, 16),
    }
    assert splits.nbytes(cut) == 2 * (2 * 16 * 16 + 16 + 2 * 16)
    assert torch.cuda.max_memory_allocated() == 5 * 512


def test_a_pair_sends_one_sum_each_way_and_keeps_the_cut_part_of_what_is_between():
    def pair():
        return nn.Sequential(nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False))

    halves = {"0": plan()["up"], "1": plan()["down"]}
    with labkit.simulated_gpu("A100-80GB"):
        assert [(one.name, one.nbytes) for one in splits.sent(pair, halves, (8, 64), of=4)] == [
            ("all_reduce", 2 * 8 * 64),
            ("all_reduce", 2 * 8 * 64),
        ]
        for of in (1, 4):
            assert splits.kept(pair, halves, (8, 64), of) == 2 * 8 * (64 + 256 // of)
        fast, slow = (splits.timed(pair, halves, (8, 64), 4, link) for link in (float("inf"), 1e5))
    assert slow.ms - fast.ms == pytest.approx(1e3 * 2 * 2 * 3 / 4 * 2 * 8 * 64 / 1e5, rel=0.02)
    assert "communication" in slow.busy()


def test_without_a_group_nothing_is_cut():
    with pytest.raises(RuntimeError, match="init_process_group"):
        splits.build(layers, plan())


def test_a_layer_that_nobody_cut_is_whole():
    layer = nn.Linear(8, 8)
    with labkit.simulated_gpu("A100-80GB"):
        said = splits.plot({"a": layer}).description
    assert said.endswith("Rank 0 of 1, from left to right: x whole; a whole; x · a whole.")
    assert splits.nbytes(layer) == 4 * 72


def test_the_figure_says_what_a_rank_has(cut):
    figure = splits.plot({"up": cut["up"], "down": cut["down"]}, "an MLP")
    assert "Rank 1 of 4, from left to right: x whole; up columns; x · up columns; down rows;" in figure.description
    assert any("all-reduce" in text.get_text() for text in figure.axes[0].texts)


def test_what_is_no_chain_of_linears_is_refused(cut):
    with pytest.raises(ValueError, match="one Linear or more"):
        splits.plot({})
    with pytest.raises(TypeError, match="'norm' is of type LayerNorm"):
        splits.plot({"norm": cut["norm"]})


def test_a_cut_layer_keeps_what_the_papers_formula_says():
    sbh, tokens = 2 * 1024 * 2048, 2 * 1024
    for attention in ("flash", "eager"):
        alone = layer_bytes.gpt_layer(2, 1024, 2048, 16, attention)
        assert layer_bytes.gpt_layer_of_a_rank(2, 1024, 2048, 16, 1, attention) == alone
    eight = layer_bytes.gpt_layer_of_a_rank(2, 1024, 2048, 16, 8, "eager")
    assert eight == 13 * sbh + 5 * 2 * 16 * 1024**2 // 8 + 16 * tokens
    with pytest.raises(ValueError, match="16 heads"):
        layer_bytes.gpt_layer_of_a_rank(2, 1024, 2048, 16, 3)
    with pytest.raises(ValueError, match="1000 tokens"):
        layer_bytes.gpt_layer_of_a_rank(2, 1000, 2048, 16, 16, sequence=True)
    with pytest.raises(ValueError, match="'math'"):
        layer_bytes.gpt_layer_of_a_rank(2, 1024, 2048, 16, 2, "math")
