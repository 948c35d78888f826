"""Makes this process one rank of N GPUs, for data, sharded, tensor and pipeline parallel training."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simgpu.ranks.world import one_rank as OneRank


def one_rank(rank: int, of: int, **more) -> OneRank:
    """Returns `simgpu.one_rank`: inside the ``with``, the process is rank `rank` of `of`, on the GPU in use.

        with labkit.one_rank(0, of=8) as me:
            torch.distributed.init_process_group("nccl")
            model = DistributedDataParallel(model)     # PyTorch's own
            print(me.traffic)                          # what this rank has sent

    The other ranks don't exist. The process group answers as if each had this rank's values, and counts the bytes. The
    memory is one rank's, on a simulated GPU and on a real one. The process group is destroyed at the end. Raises what
    `simgpu.one_rank` raises.
    """
    import simgpu

    return simgpu.one_rank(rank, of, **more)
