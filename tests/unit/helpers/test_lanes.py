"""Lanes: pieces of work on two streams, in the order in which the GPU did them."""

import pytest
import torch

import labkit
from helpers.lanes import Lanes


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("A100-80GB"):
        yield


def test_what_waits_begins_after_what_it_waits_for_and_lanes_overlap():
    copying, working = torch.cuda.Stream(), torch.cuda.current_stream()
    host, weight = torch.empty(2048, 2048, pin_memory=True), torch.zeros(2048, 2048, device="cuda")
    buffer = torch.empty_like(weight)
    lanes = Lanes()
    for i in range(3):
        with torch.cuda.stream(copying), lanes("copy", i):
            buffer.copy_(host, non_blocking=True)
        with lanes("multiply", i):
            weight @ weight
    working.wait_stream(copying)
    with lanes("multiply", "last"):
        weight @ buffer
    pieces = lanes.pieces()
    assert [name for _, _, name in pieces["multiply"]] == ["0", "1", "2", "last"]
    assert all(begin < end for row in pieces.values() for begin, end, _ in row)
    assert pieces["multiply"][0][0] < pieces["copy"][0][1]  # at the same time
    assert pieces["multiply"][-1][0] >= pieces["copy"][-1][1]  # after the copy that it waited for
    assert "copy has 3 pieces; multiply has 4 pieces" in repr(lanes.plot("a test"))


def test_nothing_is_drawn_as_nothing():
    assert Lanes().pieces() == {}
    assert "Lanes over time" in repr(Lanes().plot())
