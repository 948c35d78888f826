"""Distributed training scripts as people write them, each as one rank of several, one world after the other."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import simgpu
from simgpu.errors import NotModelledError, NoValueError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")
SCRIPTS = Path(__file__).parents[2] / "data" / "scripts" / "ranks"


@pytest.fixture(autouse=True)
def cudnn_as_it_was():
    """A script may switch cuDNN off for the whole process, as one of these does."""
    enabled = torch.backends.cudnn.enabled
    yield
    torch.backends.cudnn.enabled = enabled


def environment() -> dict[str, str]:
    """os.environ, but for what PyTorch's compiler writes there when it is imported."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR")}


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("multigpu_torchrun", []),  # DDP, with a snapshot from which it goes on
        ("imagenet_main", []),  # metrics that are summed over all ranks, from tensors in lists
        ("tp_example", []),  # no init_process_group: init_device_mesh makes the group
        ("titan", []),  # FSDP2 and tensor parallel, made on meta, whole state dicts
        ("fsdp1", ["offload"]),  # parameters on the host; the optimizer's whole state
        ("mp_spawn", []),  # starts its ranks itself
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_it_runs_as_the_first_rank_and_as_the_last(name, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = environment()
    peaks = set()
    for rank in (0, 3):
        found = simgpu.run(SCRIPTS / f"{name}.py", arguments, gpu="H100", ranks=4, rank=rank)
        assert found.outcome == "fits", found.ended
        assert not dist.is_initialized()
        peaks.add(found.peak)
    assert environment() == before
    assert len(peaks) == 1  # all of these shard evenly


def test_what_dtensor_remembers_is_not_anothers():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    for rank in (0, 3):
        with simgpu.simulated_gpu("H100", ranks=4, rank=rank):
            mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
            whole = distribute_tensor(torch.empty(8, 8, device="cuda"), mesh["tp"], [Shard(0)])
            torch.nn.init.kaiming_uniform_(whole)
            torch.nn.init.normal_(whole)
            assert whole.full_tensor().shape == (8, 8)
            assert whole.to_local().device == torch.device("cuda", rank)


def test_hooks_in_half_precision():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    with simgpu.simulated_gpu("H100"), simgpu.one_rank(1, of=2) as rank:
        dist.init_process_group("nccl")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, device="cuda"))
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        model(torch.randn(2, 64, device="cuda")).sum().backward()
        assert rank.traffic["all_reduce"].nbytes == 64 * 65 * 2
    assert torch.version.cuda is None or torch.cuda.is_available()


def test_an_optimizers_state_of_other_ranks_is_refused():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with simgpu.simulated_gpu("H100", ranks=2, rank=0):
        dist.init_process_group("nccl")
        optimizer = ZeroRedundancyOptimizer(torch.nn.Linear(4, 4, device="cuda").parameters(), torch.optim.Adam)
        with pytest.raises(NoValueError, match="rank 0 waits for the optimizer's state of rank 1"):
            optimizer.consolidate_state_dict(to=0)


def nothing(rank):
    """For spawn."""


def test_spawn_runs_this_rank_and_no_other_number():
    seen = []
    with simgpu.simulated_gpu("H100", ranks=4, rank=2):
        torch.multiprocessing.spawn(lambda rank, word: seen.append((rank, word)), args=("a",), nprocs=4)
        with pytest.raises(ValueError, match="nprocs=3, and this process is rank 2 of 4, with 4 on its machine"):
            torch.multiprocessing.spawn(nothing, nprocs=3)
    assert seen == [(2, "a")]


def on_a_gpu(rank):
    """For spawn: it asks for a GPU that the process does not have."""
    torch.cuda.set_device(rank)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the processes find a GPU")
def test_processes_that_spawn_starts_see_no_simulated_gpu():
    with simgpu.simulated_gpu("H100"), pytest.raises(NotModelledError, match="simgpu run --ranks 1 --rank 0"):
        torch.multiprocessing.spawn(on_a_gpu, nprocs=1)
