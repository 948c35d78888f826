"""Integers whose values are known, because no randomness and no floating point went into them."""

import pytest
import torch

import labkit
from simgpu.errors import NoValueError
from simgpu.tensors import values


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("A100-80GB") as gpu:
        yield gpu


def test_from_the_host_and_back():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).cuda()
    assert not mask.all()
    assert mask.sum(1).tolist() == [2, 1]
    assert mask.T.contiguous()[0].cpu().numpy().tolist() == [1, 1]
    assert int(mask[0, 2]) == 0


def test_made_on_the_gpu():
    mask = torch.ones(4, 128, dtype=torch.long, device="cuda")
    assert mask.sum() == mask.numel()
    positions = torch.arange(10, device="cuda")
    assert (torch.diff(positions) != 1).any().item() is False
    assert torch.ones(3, 3, dtype=torch.bool, device="cuda").tril().sum(1).tolist() == [1, 2, 3]


def test_writes_are_followed_through_views():
    mask = torch.ones(2, 4, dtype=torch.bool, device="cuda")
    mask[:, 1:][0] = False
    assert mask.tolist() == [[True, False, False, False], [True] * 4]
    assert mask.T[1].tolist() == [False, True]


def test_what_is_unknown_stays_unknown():
    drawn = torch.randint(3, (4,), device="cuda")
    with pytest.raises(NoValueError, match="asks for the value"):
        drawn.tolist()
    with pytest.raises(NoValueError):
        bool((torch.randn(4, device="cuda") > 0).any())
    known = torch.zeros(4, dtype=torch.long, device="cuda")
    known += drawn
    with pytest.raises(NoValueError):
        known.tolist()
    with pytest.raises(NoValueError):
        torch.empty(3, dtype=torch.long, device="cuda").tolist()


def test_a_tensor_that_is_written_beside_others_is_forgotten():
    tracker = torch.zeros((), dtype=torch.int32, device="cuda")
    one = torch.ones((), device="cuda")
    torch._amp_update_scale_(one, tracker, torch.zeros((), device="cuda"), 2.0, 0.5, 10)
    with pytest.raises(NoValueError):
        tracker.item()


def test_large_ones_are_not_followed():
    large = torch.ones(values.LIMIT + 1, dtype=torch.bool, device="cuda")
    with pytest.raises(NoValueError):
        bool(large.all())


def test_no_memory_of_the_gpu_is_taken():
    before = torch.cuda.memory_allocated()
    mask = torch.ones(1000, dtype=torch.bool, device="cuda")
    assert torch.cuda.memory_allocated() - before == 1024
    del mask
    assert torch.cuda.memory_allocated() == before


def test_one_hot_takes_the_number_of_classes_from_known_values():
    known, drawn = torch.tensor([1, 6]).cuda(), torch.randint(3, (4,), device="cuda")
    assert torch.nn.functional.one_hot(known).shape == (2, 7)
    assert torch.nn.functional.one_hot(drawn, 5).shape == (4, 5)
    with pytest.raises(NoValueError, match="one_hot"):
        torch.nn.functional.one_hot(drawn)
