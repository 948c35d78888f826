"""One rank of N: its spelling, what torchrun would have told it, and that everything is put back."""

import os

import pytest
import torch
import torch.distributed as dist

import simgpu
from simgpu.errors import NotModelledError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")


def test_what_torchrun_sets():
    wanted = {
        "RANK": "11",
        "WORLD_SIZE": "16",
        "LOCAL_RANK": "3",
        "LOCAL_WORLD_SIZE": "8",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    before = {name: os.environ.get(name) for name in wanted}
    with simgpu.simulated_gpu("H100", ranks=16, rank=11):
        assert {name: os.environ.get(name) for name in wanted} == wanted
    assert {name: os.environ.get(name) for name in wanted} == before


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4"}, "init_process_group is to be rank 2 of 4, and the simulated GPU is alone"),
        ({"WORLD_SIZE": "4"}, "is to be rank None of 4"),
        ({"RANK": "two", "WORLD_SIZE": "four"}, "init_process_group knows neither rank nor world size"),
        ({}, "init_process_group knows neither rank nor world size"),
    ],
    ids=str,
)
def test_a_world_that_the_environment_tells_of(monkeypatch, said, answer):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with simgpu.simulated_gpu("H100"):
        for name, value in said.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ValueError, match=answer):
            dist.init_process_group("nccl")


@pytest.mark.parametrize(
    "join",
    [
        lambda: dist.init_process_group("nccl"),
        lambda: dist.init_process_group(),
        lambda: dist.init_process_group("cpu:gloo,cuda:nccl"),
        lambda: dist.init_process_group(backend="nccl", init_method="env://"),
        lambda: dist.init_process_group("nccl", init_method="tcp://10.0.0.1:23456", rank=3, world_size=8),
        lambda: dist.init_process_group("nccl", rank=3, world_size=8),
        lambda: dist.init_process_group("nccl", store=dist.HashStore(), rank=3, world_size=8),
        lambda: dist.init_process_group("nccl", device_id=torch.device("cuda", 3)),
        lambda: dist.init_process_group("gloo"),
    ],
)
def test_every_way_to_join(join):
    with simgpu.simulated_gpu("H100", ranks=8, rank=3):
        join()
        assert (dist.get_rank(), dist.get_world_size()) == (3, 8)
        assert dist.is_nccl_available()
        dist.barrier()
        dist.destroy_process_group()
        assert not dist.is_initialized()


def test_its_gpu_has_the_local_rank():
    with simgpu.simulated_gpu("H100", ranks=8, rank=3):
        torch.cuda.set_device(3)
        assert torch.cuda.current_device() == 3
        assert torch.cuda.device_count() == 8
        x = torch.ones(2, device="cuda")
        assert x.device == torch.device("cuda", 3)
        assert torch.ones(2, device="cuda:3").get_device() == 3
        assert torch.cuda.memory_allocated(3) == torch.cuda.memory_allocated() == 1024 - 512
        assert torch.nn.Linear(2, 2).to(3).weight.device.index == 3
        torch.cuda.manual_seed_all(0)
        with pytest.raises(NotModelledError, match="cuda:0 is the GPU of another rank: this process is rank 3 of 8"):
            torch.ones(2, device="cuda:0")
        with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
            torch.ones(2, device="cuda:8")
    with simgpu.simulated_gpu("H100"):
        assert torch.ones(2, device="cuda").device.index == 0


def test_worlds_change_from_cell_to_cell():
    with simgpu.simulated_gpu("A100-80GB"):
        for number in (1, 2, 1024):
            with simgpu.one_rank(number - 1, of=number) as rank:
                assert str(rank) == f"rank {number - 1} of {number}"
                dist.init_process_group("nccl")
                x = torch.ones(1000, device="cuda")
                dist.all_reduce(x)
                assert rank.traffic["all_reduce"].sent == -(-2 * (number - 1) * 4000 // number)
                assert simgpu.traffic() is rank.traffic
            assert not dist.is_initialized()
        assert torch.ones(1, device="cuda").device.index == 0


def test_it_is_put_back_after_an_exception():
    before, nccl = dict(os.environ), dist.is_nccl_available()
    init, generators = dist.init_process_group, torch.cuda.default_generators
    with pytest.raises(ZeroDivisionError), simgpu.simulated_gpu("H100", ranks=4, rank=1):
        dist.init_process_group("nccl")
        os.environ["OF_THE_SCRIPT"] = "1"
        raise ZeroDivisionError
    assert not dist.is_initialized()
    assert dict(os.environ) == before
    assert (dist.is_nccl_available(), dist.init_process_group) == (nccl, init)
    assert torch.cuda.default_generators is generators


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"ranks": 8, "rank": 8}, ValueError, "rank=8 is none of a world of ranks=8: they are 0 to 7"),
        ({"ranks": 8, "rank": -1}, ValueError, "rank=-1 is none"),
        ({"ranks": 0}, ValueError, "ranks=0: a world has one rank or more"),
        ({"ranks": 2.5}, TypeError, "ranks is a whole number, not 2.5"),
        ({"rank": 2}, ValueError, "rank=2 of how many"),
    ],
)
def test_bad_numbers(arguments, error, said):
    with pytest.raises(error, match=said):
        simgpu.simulated_gpu("H100", **arguments)


def test_one_rank_wants_a_gpu_and_no_group():
    with (
        pytest.raises(RuntimeError, match=r"there is none: enter simulated_gpu\(\.\.\.\) first"),
        simgpu.one_rank(0, of=2),
    ):
        pass
    with simgpu.simulated_gpu("H100", ranks=2):
        dist.init_process_group("nccl")
        with pytest.raises(RuntimeError, match="a process group is there already"), simgpu.one_rank(0, of=2):
            pass
        assert dist.get_world_size() == 2


def test_another_world_than_the_scripts_is_refused():
    with simgpu.simulated_gpu("H100", ranks=8, rank=3):
        with pytest.raises(ValueError, match="given rank=0, and this process is rank 3 of 8"):
            dist.init_process_group("nccl", rank=0, world_size=8)
        with pytest.raises(ValueError, match="given world_size=4"):
            dist.init_process_group("nccl", world_size=4, rank=3)


def test_without_a_world_it_is_alone_or_says_how_to_be_many():
    with simgpu.simulated_gpu("H100"):
        with pytest.raises(ValueError, match=r"simulated_gpu\(\.\.\., ranks=8, rank=0\)"):
            dist.init_process_group("nccl")
        with pytest.raises(ValueError, match=r"to be rank 2 of 4, .*ranks=4, rank=2"):
            dist.init_process_group("nccl", rank=2, world_size=4)
        dist.init_process_group("nccl", init_method="tcp://localhost:29501", rank=0, world_size=1)
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        assert dist.get_world_size() == 1
        assert simgpu.traffic().sent == 0
        dist.destroy_process_group()


def test_nccls_own_memory_is_named():
    with simgpu.simulated_gpu("H100", ranks=8) as gpu:
        dist.init_process_group("nccl")
        assert not gpu.unmodeled
        dist.all_reduce(torch.ones(4, device="cuda"))
        assert "NCCL's own buffers" in dict(gpu.unmodeled)
        assert str(gpu.unmodeled) == ""  # the counters are whole


def test_a_world_on_a_gpu_inside_another_is_its_own():
    with simgpu.simulated_gpu("A100-80GB"):
        for rank in (0, 1):
            with simgpu.simulated_gpu("H100", ranks=2, rank=rank):
                dist.init_process_group("nccl")
                dist.all_reduce(torch.ones(4, device="cuda"))
                assert (dist.get_rank(), dist.get_world_size(), simgpu.traffic().sent) == (rank, 2, 16)
        assert simgpu.traffic().sent == 0
        with pytest.raises(ValueError, match="torchrun's variables are not set"):
            dist.init_process_group("nccl")


def test_the_number_of_gpus_is_not_remembered():
    """torch.cuda.random has its own name for device_count, which PyTorch's own remembers the first answer of."""
    with simgpu.simulated_gpu("A100-80GB", ranks=8, rank=3):
        torch.cuda.manual_seed_all(1)
        assert torch.cuda.device_count() == 8
    assert torch.cuda._cached_device_count is None or torch.cuda._cached_device_count < 8
    with simgpu.simulated_gpu("A100-80GB"):
        torch.manual_seed(1)
        assert torch.cuda.get_rng_state_all()[0].numel() == 16 and torch.cuda.device_count() == 1


def test_a_ranks_gpu_has_its_number_and_the_others_are_empty():
    with simgpu.simulated_gpu("H100", ranks=8, rank=3):
        torch.cuda.memory._record_memory_history()
        x = torch.ones(3, device="cuda")
        assert {one["device"] for one in torch.cuda.memory_snapshot()} == {3}
        traces = torch.cuda.memory._snapshot()["device_traces"]
        assert [bool(one) for one in traces] == [False] * 3 + [True] + [False] * 4
        with pytest.raises(torch.cuda.OutOfMemoryError, match="GPU 3 has a total capacity"):
            torch.empty(10**12, device="cuda")
        assert [torch.cuda.memory_allocated(place) for place in (0, 3, 7)] == [0, 512, 0]
        assert torch.cuda.max_memory_reserved(5) == 0
        assert x.device.index == 3
        torch.cuda.memory._record_memory_history(None)


def test_dtensors_stay_dtensors_from_one_device_to_the_other():
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

    with simgpu.simulated_gpu("H100", ranks=4, rank=1):
        mesh = init_device_mesh("cuda", (4,))
        x = distribute_tensor(torch.ones(64, 64, device="cuda"), mesh, [Shard(0)]).requires_grad_()
        there = x.cpu()
        assert isinstance(there, DTensor) and there.device == there.to_local().device == torch.device("cpu")
        assert (there.shape, there.to_local().shape, there.placements) == ((64, 64), (16, 64), (Shard(0),))
        before = torch.cuda.memory_allocated()
        back = there.to("cuda", torch.bfloat16)
        assert torch.cuda.memory_allocated() - before == 16 * 64 * 2
        assert (back.dtype, back.to_local().dtype) == (torch.bfloat16, torch.bfloat16)
        back.sum().backward()
        assert isinstance(x.grad, DTensor) and x.grad.to_local().device == torch.device("cuda", 1)


def test_offloaded_parameters_that_were_made_on_meta_have_gradients_that_are_dtensors():
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    from torch.distributed.tensor import DTensor

    with simgpu.simulated_gpu("H100", ranks=4, rank=1):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        with torch.device("meta"):
            model = torch.nn.Linear(64, 64)
        fully_shard(model, offload_policy=CPUOffloadPolicy())
        model.to_empty(device="cpu")
        model(torch.randn(4, 64, device="cuda")).sum().backward()
        assert isinstance(model.weight.grad * 2, DTensor)
        assert isinstance(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), DTensor)
