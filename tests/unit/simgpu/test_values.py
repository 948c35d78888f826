"""Tensors whose values are known: small ones that nothing random and nothing unknown went into."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit
from simgpu.errors import NoValueError
from simgpu.storage import storage_map, values


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


def test_tensors_of_the_host_are_compared_there():
    x = torch.ones(3)
    assert torch.allclose(x, x + 1e-9) is True and torch.allclose(x, x + 1) is False
    assert torch.equal(x, x.clone()) is True and torch.equal(x, x + 1) is False


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
    torch._amp_update_scale_(one, tracker, torch.rand((), device="cuda"), 2.0, 0.5, 10)
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


def test_floats_of_the_host_if_few_and_of_factories():
    few, many = torch.rand(values.FLOATS), torch.rand(values.FLOATS + 1)
    assert few.cuda().tolist() == few.tolist()
    assert few.cuda().sum().item() == few.sum().item()
    assert math.isnan(many.cuda().sum().item())
    mask = torch.ones(3, 40, device="cuda")
    assert mask.to(torch.bool).all() and (1 - mask).sum().item() == 0
    assert math.isnan((mask * torch.rand(40, device="cuda")).sum().item())


def test_a_tensor_of_the_host_may_change_after_its_copy():
    host = torch.zeros(3)
    copy = host.cuda()
    index = torch.tensor([2, 0])
    chosen = torch.arange(3).cuda()[index]
    host.fill_(7)
    index.fill_(1)
    assert copy.tolist() == [0, 0, 0] and chosen.tolist() == [2, 0]


def test_writing_over_what_was_unknown_makes_it_known():
    x = torch.empty(2, 3, device="cuda")
    x[0].fill_(1)
    assert math.isnan(x.sum().item())
    assert x.fill_(2).sum().item() == 12 and x.copy_(torch.ones(2, 3)).sum().item() == 6
    x[0, 0] = torch.rand((), device="cuda")
    assert math.isnan(x.sum().item())
    known = torch.zeros(3, device="cuda")
    torch.add(known, torch.rand(3, device="cuda"), out=known)
    assert math.isnan(known.sum().item())


def test_indices_given_as_lists():
    ids = torch.arange(12).view(3, 4).cuda()
    assert ids[:, [-1, 0]].tolist() == [[3, 0], [7, 4], [11, 8]]
    assert ids[[2, 0]].tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    assert ids[[[0, 1], [1, 0]]].tolist() == [1, 4] and ids[range(2)].shape == (2, 4)
    assert ids[[True, False, True]].tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    ids[[0, 2], [1, 1]] = 0
    assert ids[:, 1].tolist() == [0, 5, 0]
    assert 4 in ids and 9 not in ids


def test_what_masks_select():
    ids = torch.arange(12).view(3, 4).cuda()
    mask = ids % 5 == 0
    assert ids[mask].tolist() == ids.masked_select(mask).tolist() == [0, 5, 10]
    assert mask.nonzero().tolist() == [[0, 0], [1, 1], [2, 2]] and mask.nonzero().stride() == (1, 3)
    assert [one.tolist() for one in torch.where(mask)] == [[0, 1, 2], [0, 1, 2]]
    assert torch.rand(3, 4, 5, device="cuda")[mask].shape == (3, 5)
    ids[mask] = torch.tensor([7, 8, 9], device="cuda")
    assert ids.diagonal().tolist() == [7, 8, 9]
    ids[mask] = 1
    assert ids.diagonal().tolist() == [1, 1, 1]
    assert torch.unique(ids // 3).tolist() == [0, 1, 2, 3]


def test_selecting_takes_what_cuda_takes():
    """The oracle, torch 2.13.0 as an A100: bytes while 600,000 booleans are looked through; none of them is true."""
    mask = torch.zeros(600_000, dtype=torch.bool, device="cuda")
    torch.cuda.memory._record_memory_history()
    mask.nonzero()
    sizes = [event["size"] for event in torch.cuda.memory._snapshot()["device_traces"][0] if event["action"] == "alloc"]
    torch.cuda.memory._record_memory_history(None)
    assert sizes == [4, 17663, 3071]


OPERATIONS = (
    lambda x: x + 1, lambda x: x * x, lambda x: x.t(), lambda x: x[1:], lambda x: x[:, ::2], lambda x: x.contiguous(),
    lambda x: x.add_(2), lambda x: x[0].mul_(3) * 1, lambda x: x.flatten(), lambda x: x.clone(), lambda x: x.sum(0),
    lambda x: x[x > 2], lambda x: x.masked_fill_(x > 5, 0), lambda x: torch.cat([x, x]), lambda x: x.cumsum(0),
    lambda x: torch.where(x > 3, x, -x), lambda x: x[[0, -1]], lambda x: x.expand(2, *x.shape), lambda x: x.nonzero(),
    lambda x: x.float().exp().int(), lambda x: x.flip(0), lambda x: torch.stack([x, x.neg()]).amax(0),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(OPERATIONS) - 1), max_size=8), st.integers(0, 3), st.booleans())
def test_known_values_are_those_of_the_cpu(numbers, extra, floats):
    def run(x):
        seen = [x]
        for number in numbers:
            try:
                x = OPERATIONS[number](x)
            except (IndexError, RuntimeError) as error:
                seen.append(torch.tensor(len(str(type(error)))))
            seen.append(x)
        return [one.cpu().tolist() for one in seen]

    start = torch.arange(4 * (3 + extra)).view(4, -1)
    start = start.float() if floats else start
    wanted = run(start.clone())
    with labkit.simulated_gpu("T4"):
        assert run(start.cuda()) == wanted


def test_an_unknown_tensor_that_goes_to_the_host_fills_no_memory_there(monkeypatch):
    """As save_on_cpu does for each activation: its bytes on the host would be written over by what nobody knows."""
    unknown = torch.rand(1024, 1024, device="cuda")
    filled, zeros = [], torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *args, **kwargs: filled.append(args) or zeros(*args, **kwargs))
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        kept = (unknown.requires_grad_() * unknown).sum()
    kept.backward()
    assert filled == []
    known = torch.empty(2, pin_memory=True).copy_(torch.ones(2, device="cuda"))
    assert known.tolist() == [1, 1]


# --- lengths of packed sequences ---------------------------------------------------------------------------


@pytest.mark.parametrize("kept_sorted", [True, False])
def test_lengths_that_were_copied_from_the_gpu_pack(kept_sorted):
    pack = torch.nn.utils.rnn.pack_padded_sequence
    rows, ids = torch.randn(3, 4, 2).cuda(), torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0], [5, 0, 0, 0]]).cuda()
    lengths = (ids != 0).sum(1).cpu()
    packed = pack(rows, lengths, batch_first=True, enforce_sorted=kept_sorted)
    assert packed.data.shape == (7, 2) and packed.data.is_cuda
    assert packed.batch_sizes.tolist() == [3, 2, 1, 1]
    assert repr(lengths) == "tensor([4, 2, 1])"
    unknown = torch.rand(3, device="cuda").mul(4).long().cpu() + 1
    with pytest.raises(NoValueError, match="the lengths were copied from the simulated GPU"):
        pack(rows, unknown, batch_first=True, enforce_sorted=False)


OUT = {
    "add": lambda out, t: torch.add(t, t, out=out),
    "cat": lambda out, t: torch.cat([t[:1], t[1:]], out=out),
    "mul by a number": lambda out, t: torch.mul(t, 2, out=out),
    "where": lambda out, t: torch.where(t > 3, t, -t, out=out),
    "cumsum": lambda out, t: torch.cumsum(t, 1, out=out),
}


@pytest.mark.parametrize("call", OUT.values(), ids=OUT)
@pytest.mark.parametrize("size", [(2, 4), (0,)])
def test_what_is_written_with_out_is_known(call, size):
    content = [[0, 0, 3, 4], [3, 4, 5, 6]]
    expected = call(torch.empty(2, 4, dtype=torch.long), torch.tensor(content)).tolist()
    with labkit.simulated_gpu("T4"):
        out = torch.empty(size, dtype=torch.long, device="cuda")
        assert call(out, torch.tensor(content, device="cuda")).tolist() == out.tolist() == expected
        part = torch.zeros(4, 4, dtype=torch.long, device="cuda")
        call(part[1:3], torch.tensor(content, device="cuda"))
        assert part.tolist() == [[0] * 4, *expected, [0] * 4]
        out = torch.empty(2, 4, dtype=torch.long, device="cuda")
        call(out, torch.randint(0, 9, (2, 4), device="cuda"))
        assert values.of(out) is None
        part = torch.empty(4, 4, dtype=torch.long, device="cuda")
        call(part[1:3], torch.tensor(content, device="cuda"))
        assert values.of(part) is None


def test_both_results_of_a_maximum_are_known():
    with labkit.simulated_gpu("T4"):
        found = [torch.empty(2, dtype=torch.long, device="cuda") for _ in range(2)]
        torch.max(torch.tensor([[1, 7, 2], [9, 3, 4]], device="cuda"), 1, out=tuple(found))
        assert [one.tolist() for one in found] == [[7, 9], [1, 0]]


@pytest.mark.parametrize("name", ["logical_not", "logical_and", "logical_or", "logical_xor"])
def test_truth_values_are_followed(name):
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    given = [a] if name == "logical_not" else [a, b]
    with labkit.simulated_gpu("T4"):
        found = getattr(torch, name)(*(one.cuda() for one in given))
        assert found.cpu().equal(getattr(torch, name)(*given))


def test_one_operand_decides_what_and_and_or_give():
    """What ends generate(): at most so many tokens, or a token that nobody knows."""
    stop, unknown = torch.ones(3, dtype=torch.bool, device="cuda"), torch.rand(3, device="cuda") > 0.5
    assert (unknown | stop).tolist() == torch.logical_or(stop, unknown).tolist() == [True] * 3
    assert ((torch.ones(3, device="cuda").long() & ~unknown) & ~stop).max() == 0
    assert torch.logical_and(torch.rand(2, 3, device="cuda") > 0.5, ~stop).any().item() is False
    unknown |= stop
    assert unknown.all()
    unknown = torch.rand(3, device="cuda") > 0.5
    number = torch.rand(3, device="cuda").long()
    undecided = unknown & stop, unknown | ~stop, stop | number, unknown | torch.tensor([True, False, True]).cuda()
    assert all(values.of(one) is None for one in undecided)


def test_what_is_written_over_again_and_again_costs_no_more_than_the_first_time():
    with labkit.simulated_gpu():
        x = torch.zeros(1024, 1024, device="cuda")
        for _ in range(100):
            x.zero_()
            x.fill_(3)
        place = storage_map.of(x)
        assert place is not None and place.values.depth == 1
        assert x.sum().item() == 3 * 2**20


def test_writing_over_a_view_that_does_not_reach_all_keeps_the_rest():
    with labkit.simulated_gpu():
        x = torch.arange(4, device="cuda")
        x.as_strided((2, 2), (1, 1)).fill_(9)
        assert x.tolist() == [9, 9, 9, 3]
