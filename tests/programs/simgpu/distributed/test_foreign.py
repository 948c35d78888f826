"""Distributed training scripts as people write them, each as one rank of several, one world after the other."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import simgpu
from simgpu.errors import NotModelledError, NoValueError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")
SCRIPTS = Path(__file__).parents[3] / "data" / "scripts" / "ranks"


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
        ("ddp_tutorial", ["checkpoint", "join"]),  # small tensors saved by rank 0; ranks with more batches than others
        ("fsdp2_tutorial", ["prefetch", "dcp"]),  # whole states to rank 0's file, and from rank 0 to all
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_it_runs_as_the_first_rank_and_as_the_last(name, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = environment()
    peaks = set()
    for rank in (0, 3):
        found = simgpu.run(SCRIPTS / f"{name}.py", arguments, gpu="H100", ranks=4, rank=rank)
        assert found.completed, found.ended
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


def test_what_fake_tensors_remember_of_cuda_is_not_anothers():
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = dict(FakeTensorMode.cache)
    for rank in (3, 0):
        with simgpu.simulated_gpu("H100", ranks=4, rank=rank):
            torch.cuda.init()
            with torch._C.DisableTorchFunction(), FakeTensorMode():  # as where DTensor asks for shapes
                assert torch.empty_strided((8, 8), (8, 1), device="cuda").device == torch.device("cuda", rank)
    assert FakeTensorMode.cache == before


def test_how_many_gpus_there_are_is_not_what_another_world_had():
    """torch.cuda.random holds PyTorch's own device_count, which keeps its answer."""
    for ranks in (4, 1):
        with simgpu.simulated_gpu("H100", ranks=ranks, rank=0):
            torch.cuda.init()
            assert torch.cuda.random.device_count() == torch.cuda.device_count() == ranks
            assert len(torch.cuda.get_rng_state_all()) == ranks
    assert torch.cuda._cached_device_count is None or torch.cuda.is_available()


def test_the_loss_over_words_on_all_ranks_takes_what_pytorchs_does():
    """DTensor's handlers of the loss write through a mask, which on CUDA is a masked_fill: no nonzero. Their figures
    are the oracle's (PyTorch 2.13's CUDA host code under stub libraries)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor._dispatch import OpDispatcher
    from torch.distributed.tensor.parallel import loss_parallel

    before = vars(OpDispatcher).copy(), dict(DTensor._op_dispatcher._custom_op_handlers)
    with simgpu.simulated_gpu("H100", ranks=4, rank=1):
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (4,))
        logits = torch.randn(1000, 250, device="cuda", requires_grad=True)
        words = DTensor.from_local(logits, mesh, [Shard(1)])
        wanted = torch.zeros(1000, dtype=torch.long, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        with loss_parallel():
            torch.nn.functional.cross_entropy(words, wanted).backward()
        stats = torch.cuda.memory_stats()
        found = [stats[name] for name in ("allocation.all.allocated", "requested_bytes.all.allocated")]
        assert [*found, torch.cuda.max_memory_allocated()] == [50, 8131052, 5045760]
    assert before == (vars(OpDispatcher), DTensor._op_dispatcher._custom_op_handlers)


def test_hooks_in_half_precision():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    before = torch.version.cuda
    with simgpu.simulated_gpu("H100"), simgpu.one_rank(1, of=2) as rank:
        dist.init_process_group("nccl")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, device="cuda"))
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        model(torch.randn(2, 64, device="cuda")).sum().backward()
        assert rank.traffic["all_reduce"].nbytes == 64 * 65 * 2
    assert torch.version.cuda == before


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_over_all_ranks_of_equal_batches_is_that_of_one(layout):
    torch.manual_seed(0)
    given, found = torch.randn(4, 6, 5, 5), []
    for synced in (False, True):
        with simgpu.simulated_gpu("H100", values=True, ranks=2, rank=1):
            dist.init_process_group("nccl")
            model = torch.nn.BatchNorm2d(6, device="cuda")
            if synced:
                model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
            x = given.to("cuda", memory_format=layout).requires_grad_()
            y = model(x)
            y.pow(3).sum().backward()
            tensors = (y.detach(), x.grad, model.weight.grad, model.bias.grad, model.running_mean)
            found.append([one.cpu() for one in tensors])
            variance = model.running_var.cpu()
    for alone, together in zip(*found, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)
    moments = given.transpose(0, 1).reshape(6, -1).repeat(1, 2).var(1)  # of both ranks' values
    torch.testing.assert_close(variance, 0.9 + 0.1 * moments)


def test_batch_norm_over_all_ranks_selects_those_with_a_batch():
    with simgpu.simulated_gpu("H100", ranks=8, rank=3) as gpu:
        dist.init_process_group("nccl")
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(64, device="cuda"))
        x = torch.randn(32, 64, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        y = model(x)
        # the result, and for the backward pass the mean, the inverse deviation, and a count of each rank
        assert torch.cuda.memory_allocated() - before == 32 * 64 * 4 + 3 * 512
        y.sum().backward()
        assert x.grad.shape == x.shape
        assert not [name for name, _ in gpu.unmodeled if "batch_norm" in name]


def test_what_follows_a_collective_runs_on_a_stream_of_the_pool():
    with simgpu.simulated_gpu("H100", ranks=2, rank=0):
        dist.init_process_group("nccl")
        x = torch.randn(512, 512, device="cuda")
        x @ x
        before, streams = torch.cuda.memory_allocated(), []

        def multiplied(future):
            streams.append(torch.cuda.current_stream().stream_id)
            return future.value()[0] @ x

        found = dist.all_reduce(x, async_op=True).get_future().then(multiplied).wait()
        assert streams[0] != torch.cuda.current_stream().stream_id == 0
        assert torch.cuda.memory_allocated() - before == 32 * 2**20 + found.nbytes  # a workspace of cuBLAS's, once more


def test_an_error_in_what_follows_is_that_of_the_one_who_waits():
    def wrong(future):
        raise KeyError("no such gradient")

    with simgpu.simulated_gpu("H100", ranks=2, rank=0):
        dist.init_process_group("nccl")
        failed = dist.all_reduce(torch.ones(1, device="cuda"), async_op=True).get_future().then(wrong)
        with pytest.raises(KeyError, match="no such gradient"):
            failed.wait()


def test_what_only_the_watchdog_lets_go_is_named():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    with simgpu.simulated_gpu("H100", ranks=2, rank=1) as gpu:
        dist.init_process_group("nccl")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024, device="cuda"))
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        x = torch.randn(2, 1024, device="cuda")
        model(x).sum().backward()
        with pytest.warns(simgpu.IncompleteEstimateWarning, match="when NCCL's watchdog frees its tensors"):
            model(x).sum().backward()
        assert "a collective whose handle nobody waits for" in dict(gpu.unmodeled)


def test_an_optimizers_state_of_other_ranks_is_refused():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with simgpu.simulated_gpu("H100", ranks=2, rank=0):
        dist.init_process_group("nccl")
        optimizer = ZeroRedundancyOptimizer(torch.nn.Linear(4, 4, device="cuda").parameters(), torch.optim.Adam)
        with pytest.raises(NoValueError, match="rank 0 waits for the optimizer's state of rank 1"):
            optimizer.consolidate_state_dict(to=0)
        dist.broadcast(torch.ones(3, device="cuda"), src=1)  # any other broadcast is not


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


def trained_by_accelerate():
    """A step by accelerate, with batches in an order of chance, which the ranks agree on."""
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = torch.nn.Linear(64, 64)
    data = torch.utils.data.TensorDataset(torch.randn(64, 64))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (x,) in loader:
        accelerator.backward(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
    return str(accelerator.device), len(loader)


@pytest.mark.filterwarnings("ignore")
def test_accelerate_in_one_world_after_the_other():
    pytest.importorskip("accelerate")
    from accelerate.state import PartialState

    before = dict(PartialState._shared_state)  # of a test before this one, in the same process
    for rank in (0, 3):
        with simgpu.simulated_gpu("H100", ranks=4, rank=rank):
            assert trained_by_accelerate() == (f"cuda:{rank}", 4)
    assert PartialState._shared_state == before


def test_a_generator_of_the_host_takes_a_state_that_came_back():
    with simgpu.simulated_gpu("H100"):
        generator = torch.Generator()
        state = generator.get_state()
        drawn = torch.rand(3, generator=generator)
        generator.set_state(state.cuda().cpu())
        assert torch.equal(torch.rand(3, generator=generator), drawn)
        state = torch.get_rng_state()
        drawn = torch.rand(3)
        torch.set_rng_state(state.cuda().cpu())
        assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_part_of_a_whole_tensor_is_that_of_its_rank(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    with simgpu.simulated_gpu("H100", rank=rank, ranks=4, values=True):
        mesh = init_device_mesh("cuda", (4,))
        whole = torch.arange(8.0, device="cuda")
        part = distribute_tensor(whole, mesh, [Shard(0)])
        assert part.to_local().tolist() == [2.0 * rank, 2.0 * rank + 1]
