"""Which of a model's sharded layers are whole at which moment of a step."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import labkit
from helpers import shards


def _three(**how):
    dist.init_process_group("nccl")
    with torch.device("cuda"):
        net = nn.Sequential(*(nn.Linear(96, 96, bias=False) for _ in range(3)))
    for layer in net:
        fully_shard(layer, **how)
    return fully_shard(net)


def _moments(**how):
    with labkit.simulated_gpu("A100-80GB"), labkit.one_rank(1, of=3):
        net = _three(**how)
        moments = shards.Moments(a=net[0], b=net[1], c=net[2])
        net(torch.zeros(2, 96, device="cuda")).sum().backward()
        moments.note("end")
        moments.stop()
        net(torch.zeros(2, 96, device="cuda"))
        return moments, moments.table(), moments.plot("three layers")


def test_each_layer_is_whole_while_it_computes_and_the_next_one_comes_in_backward():
    moments, table, figure = _moments()
    found = {one.name: "".join(kind[0] for kind in one.layers.values()) for one in moments.noted}
    assert found == {
        "forward a": "wss",
        "forward b": "sws",
        "forward c": "ssw",
        "backward c": "scw",
        "backward b": "cws",
        "backward a": "wss",
        "end": "sss",
    }
    assert (moments.rank, moments.ranks) == (1, 3)
    assert list(table.columns) == ["a", "b", "c", "allocated (MiB)"]
    assert "backward b: a coming, b whole" in figure.description


def test_without_resharding_a_layer_stays_whole_until_its_backward_is_done():
    moments, *_ = _moments(reshard_after_forward=False)
    assert [one.layers["a"] for one in moments.noted] == ["whole"] * 6 + ["shard"]


def test_a_layer_that_is_not_sharded_is_refused():
    with pytest.raises(ValueError, match="layer head has no parameters that FSDP2 shards"):
        shards.Moments(head=nn.Linear(2, 2))
