"""Checkpoints of one rank of many: torch.distributed.checkpoint, and FSDP1's kinds of state dicts."""

import re
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn

import simgpu
from simgpu.errors import NoValueError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")
RANKS = 4


def model():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6)).cuda()


def stepped(network):
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_checkpoint_has_this_ranks_part_and_says_which_are_the_others(rank, copies, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as states
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with simgpu.simulated_gpu("H100", ranks=RANKS, rank=rank, values=True):
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (copies, RANKS // copies), mesh_dim_names=("copy", "shard"))
        network = fully_shard(model(), mesh=mesh)
        optimizer = stepped(network)
        kept, of_optimizer = states.get_state_dict(network, optimizer)
        saved = kept["0.weight"].to_local().cpu().clone()
        dcp.save({"model": kept, "optimizer": of_optimizer}, checkpoint_id=tmp_path)
        assert (tmp_path / f"__{rank}_0.distcp").exists()
        assert (tmp_path / ".metadata").exists() == (rank == 0)
        if rank == 0:
            of_all = dcp.FileSystemReader(tmp_path).read_metadata().state_dict_metadata["model.2.weight"]
            shards = RANKS // copies
            starts = range(0, 6, -(-6 // shards))  # of four ranks the last has none of the six rows
            assert [one.offsets[0] for one in of_all.chunks if one.sizes[0]] == [*starts]
        if rank == 0:
            kept["0.weight"].to_local().zero_()
            dcp.load({"model": kept, "optimizer": of_optimizer}, checkpoint_id=tmp_path)
            assert torch.equal(kept["0.weight"].to_local().cpu(), saved)


def saved_and_loaded(folder, save, load):
    """A program that trains for a step, and before it saves or loads the states of all."""

    def program():
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import state_dict as states
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("cpu:gloo,cuda:nccl")
        network = fully_shard(model())
        optimizer = stepped(network)
        kept = dict(zip(("model", "optimizer"), states.get_state_dict(network, optimizer), strict=True))
        if save:
            dcp.async_save(kept, checkpoint_id=folder).result() if save == "async" else dcp.save(
                kept, checkpoint_id=folder
            )
        if load:
            dcp.load(kept, checkpoint_id=folder)
            states.set_state_dict(
                network, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"]
            )
        stepped(network)

    return program


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["now", "async"])
def test_other_ranks_load_what_rank_0_alone_has_saved(tmp_path, how):
    """Their own parts do not exist: tensors without values represent them, and allocate what they would allocate."""
    saved = simgpu.run(saved_and_loaded(tmp_path / "kept", how, False), ranks=RANKS, rank=0, out=tmp_path / "out")
    assert saved.completed and not (tmp_path / "kept").exists()
    folder = Path(saved.files[0].where).parent
    assert {one.name for one in folder.iterdir()} == {"__0_0.distcp", ".metadata"}
    peaks = set()
    for rank in (0, 1, 2):
        found = simgpu.run(saved_and_loaded(folder, None, True), ranks=RANKS, rank=rank)
        assert found.completed, found.ended
        peaks.add(found.peak)
    assert len(peaks) == 1


@pytest.mark.filterwarnings("ignore")
def test_values_that_another_rank_would_have_saved_are_asked_for_by_name(tmp_path):
    assert simgpu.run(saved_and_loaded(tmp_path, "now", False), ranks=RANKS, rank=0, values=True).completed
    assert simgpu.run(saved_and_loaded(tmp_path, None, True), ranks=RANKS, rank=0, values=True).completed
    found = simgpu.run(saved_and_loaded(tmp_path, None, True), ranks=RANKS, rank=2, values=True)
    assert found.status == 2
    assert re.search("rank 2 loads 'model.*', which another rank would have written", found.ended), found.ended


def first_generation(orig):
    from torch.distributed.fsdp import FullyShardedDataParallel

    network = FullyShardedDataParallel(model(), use_orig_params=orig, device_id=torch.cuda.current_device())
    return network, stepped(network)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rank", range(RANKS))
def test_local_states_are_this_ranks_flat_shard(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    whole = 64 * 64 + 64 + 6 * 64 + 6
    most = -(-whole // RANKS)
    with simgpu.simulated_gpu("H100", ranks=RANKS, rank=rank):
        dist.init_process_group("nccl")
        network, _ = first_generation(orig=False)
        with FullyShardedDataParallel.state_dict_type(network, StateDictType.LOCAL_STATE_DICT):
            flat = network.state_dict()["_flat_param"]
            network.load_state_dict(network.state_dict())
        shards = flat.metadata().shards_metadata
        assert [one.shard_offsets[0] for one in shards] == [most * at for at in range(RANKS)]
        assert sum(one.shard_sizes[0] for one in shards) == whole
        assert [str(one.placement) for one in shards] == [f"rank:{at}/cuda:{at}" for at in range(RANKS)]


@pytest.mark.filterwarnings("ignore")
def test_states_of_parameters_that_lie_on_other_ranks_are_refused_by_name():
    from torch.distributed.fsdp import FullyShardedDataParallel

    with simgpu.simulated_gpu("H100", ranks=RANKS, rank=1):
        dist.init_process_group("nccl")
        network, optimizer = first_generation(orig=True)
        with pytest.raises(NoValueError, match=r"rank 1 has no optimizer state of 0\.bias, 2\.weight, 2\.bias"):
            FullyShardedDataParallel.optim_state_dict(network, optimizer)
        network, optimizer = first_generation(orig=False)
        assert len(FullyShardedDataParallel.optim_state_dict(network, optimizer)["state"]) == 4


def test_shards_of_ones_own_choice_are_refused():
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharded_tensor import Shard

    with simgpu.simulated_gpu("H100", ranks=RANKS, rank=1):
        dist.init_process_group("nccl")
        mine = Shard.from_tensor_and_offsets(torch.empty(2, 8, device="cuda"), [2, 0], 1)
        with pytest.raises(NoValueError, match="rank 1 makes a ShardedTensor of size"):
            sharded_tensor.init_from_local_shards([mine], 8, 8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rank", [0, 3])
def test_the_first_generations_shards_are_saved_with_where_the_others_lie(rank, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    with simgpu.simulated_gpu("H100", ranks=RANKS, rank=rank, values=True):
        dist.init_process_group("nccl")
        network, _ = first_generation(orig=False)
        with FullyShardedDataParallel.state_dict_type(network, StateDictType.SHARDED_STATE_DICT):
            dcp.save({"model": network.state_dict()}, checkpoint_id=tmp_path)
        assert (tmp_path / f"__{rank}_0.distcp").exists()
        if rank == 0:
            of_all = dcp.FileSystemReader(tmp_path).read_metadata().state_dict_metadata["model.2.weight"]
            assert [one.offsets[0] for one in of_all.chunks] == [0, 2, 4]  # of four ranks the last has no row


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rank", [0, 3])
def test_whole_states_come_from_rank_0(rank):
    from torch.distributed.checkpoint import state_dict as states
    from torch.distributed.fsdp import fully_shard

    with simgpu.simulated_gpu("H100", ranks=RANKS, rank=rank):
        dist.init_process_group("nccl")
        network = fully_shard(model())
        optimizer = stepped(network)
        whole = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
        kept = states.get_model_state_dict(network, options=whole)
        of_optimizer = states.get_optimizer_state_dict(network, optimizer, options=whole)
        assert len(kept) == (4 if rank == 0 else 0)
        simgpu.traffic().clear()
        told = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        states.set_model_state_dict(network, kept, options=told)
        parameters = 4 * (64 * 64 + 64 + 6 * 64 + 6)
        assert simgpu.traffic()["broadcast"].nbytes >= parameters  # and what says which and how large
        states.set_optimizer_state_dict(network, optimizer, of_optimizer, options=told)
        assert all(one["exp_avg"].to_local().is_cuda for one in optimizer.state.values())
