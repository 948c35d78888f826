"""DistributedDataParallel on one simulated rank: what it asks of PyTorch's build, and what it says on stderr."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from simgpu import one_rank, simulated_gpu


def steps(rank, count=2, hook=None):
    """Bytes of the gradients' all-reduces in each of `count` steps."""
    dist.init_process_group("nccl")
    model = DistributedDataParallel(torch.nn.Linear(64, 64, device="cuda"))
    if hook is not None:
        model.register_comm_hook(None, hook)
    found = []
    for _ in range(count):
        rank.traffic.clear()
        model(torch.zeros(4, 64, device="cuda")).sum().backward()
        found.append(rank.traffic["all_reduce"].nbytes)
    return found


def test_gradients_are_sent_in_bfloat16_by_pytorchs_hook_and_the_build_says_what_it_did():
    check = vars(DistributedDataParallel)["_check_comm_hook"]
    with simulated_gpu("A100-80GB"):
        before = torch.version.cuda
        with one_rank(0, of=8) as rank:
            plain = steps(rank)
        with one_rank(0, of=8) as rank:
            assert steps(rank, hook=bf16_compress_hook) == [nbytes // 2 for nbytes in plain]
        assert torch.version.cuda == before
    assert vars(DistributedDataParallel)["_check_comm_hook"] is check


def test_a_hook_that_pytorch_refuses_is_refused_and_the_build_is_put_back():
    before = torch.version.cuda
    with simulated_gpu("A100-80GB"), one_rank(0, of=2):
        dist.init_process_group("nccl")
        model = DistributedDataParallel(torch.nn.Linear(8, 8, device="cuda"))
        with pytest.raises(TypeError, match="callable"):
            model.register_comm_hook(None, "bf16")  # pyright: ignore[reportArgumentType]
    assert torch.version.cuda == before


def test_a_step_says_nothing_on_stderr(capfd):
    with simulated_gpu("A100-80GB"), one_rank(0, of=8) as rank:
        steps(rank, count=3)
    assert capfd.readouterr().err == ""
