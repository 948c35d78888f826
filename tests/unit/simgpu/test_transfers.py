"""Messages and objects between ranks, and batch norm over the batches of all of them."""

import pickle

import pytest
import torch
import torch.distributed as dist

import simgpu
from simgpu.device.machine import current
from simgpu.distributed.replay import PendingTransfer

aten = torch.ops.aten


@pytest.fixture
def ranks():
    with simgpu.simulated_gpu("H100", ranks=4, rank=1) as on:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        yield on


def test_a_message_is_from_whom_it_came(ranks):
    x = torch.empty(4, device="cuda")
    assert dist.irecv(x, src=3)._source_rank() == 3


def test_gathering_on_the_host_takes_nothing_of_the_gpu(ranks):
    torch.ones(1, device="cuda")
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    dist.all_gather([torch.empty(3) for _ in range(4)], torch.ones(3))
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_a_log_begins_when_the_gpu_has_done_what_was_asked_before(ranks):
    x = torch.empty(16384, 16384, device="cuda")
    torch.cuda.synchronize()
    begun = current().clock.host
    x @ x
    torch.cuda.synchronize()
    whole = current().clock.host - begun
    x @ x
    with simgpu.record_rank() as log:
        at = current().clock.host
        torch.cuda.synchronize()
        assert current().clock.host - at < whole / 100
    assert log is not None


def test_objects_for_a_group_that_is_none_of_ours_are_pytorch_s_business(tmp_path):
    with simgpu.simulated_gpu("T4"):
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            with pytest.raises((pickle.PicklingError, AttributeError)):
                dist.broadcast_object_list([lambda: 0])
        finally:
            dist.destroy_process_group()


def test_objects_come_from_a_rank_that_is_named(ranks):
    with pytest.raises(ValueError, match="Must specify global_rank or group_rank"):
        dist.recv_object_list([None], device=torch.device("cuda"))


def test_two_transfers_of_the_same_ranks_are_two():
    same = {"player": None, "own": 1, "transfer": None, "place": 0, "ready": 0.0, "before": None}
    one, other = PendingTransfer(**same), PendingTransfer(**same)
    assert one != other and len({one, other}) == 2


@pytest.mark.parametrize("weighted", [False, True])
def test_a_synced_batch_norms_gradient_has_the_cpu_s_values(weighted):
    """batch_norm_backward_elemt, with the sums of one rank: what native_batch_norm_backward gives."""
    torch.manual_seed(0)
    x, grad, weight = torch.randn(4, 3, 5), torch.randn(4, 3, 5), torch.rand(3) + 0.5 if weighted else None
    mean, inverse = x.mean((0, 2)), (x.var((0, 2), unbiased=False) + 1e-5).rsqrt()
    sums = grad.sum((0, 2)), (grad * (x - mean.view(1, 3, 1))).sum((0, 2)), torch.tensor([20], dtype=torch.int32)
    given = [grad, x, mean, inverse, weight, *sums]
    expected, *_ = aten.native_batch_norm_backward(
        grad, x, weight, None, None, mean, inverse, True, 1e-5, [True, False, False]
    )
    with simgpu.simulated_gpu("H100", values=True):
        found = aten.batch_norm_backward_elemt(*(None if one is None else one.cuda() for one in given)).cpu()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_synced_batch_norm_has_the_cpu_s_values(weighted):
    """batch_norm_elemt, with the statistics of one rank: what batch_norm gives."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(4, 3, 5), *(torch.rand(2, 3) + 0.5 if weighted else (None, None))
    mean, inverse = x.mean((0, 2)), (x.var((0, 2), unbiased=False) + 1e-5).rsqrt()
    expected = torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True)
    with simgpu.simulated_gpu("H100", values=True):
        given = [None if one is None else one.cuda() for one in (x, weight, bias, mean, inverse)]
        found = aten.batch_norm_elemt(*given, 1e-5).cpu()
    torch.testing.assert_close(found, expected)
