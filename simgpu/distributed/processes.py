"""Handles a script that starts its ranks itself with torch.multiprocessing.spawn: only this rank of the world runs,
here.
"""

from functools import wraps

import torch

from simgpu.device.machine import Machine
from simgpu.distributed.world import Alone
from simgpu.errors import NotModelledError

UNSEEN = ("_cuda_setDevice", "not compiled with CUDA", "No CUDA GPUs")
"""Errors of a process without a simulated GPU that requests one, on PyTorch's build for the CPU."""


def spawning(machine: "Machine | Alone", spawn):
    """Wraps torch.multiprocessing.spawn (`spawn`).

    In a world it calls the function once, in this process, with this rank's local index. Raises ValueError if the
    number of processes differs from the machine's ranks. Without a world it starts processes, which see no simulated
    GPU, and raises NotModelledError if they request one.
    """

    @wraps(spawn)
    def one(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
        world = machine.world
        if world is None:
            try:
                return spawn(fn, args, nprocs, join, daemon, start_method)
            except torch.multiprocessing.ProcessRaisedException as error:
                if not any(text in str(error) for text in UNSEEN):
                    raise
                raise NotModelledError(
                    f"torch.multiprocessing.spawn started {nprocs} processes, and the simulated GPU is this process's "
                    f"alone. Make it one rank of them, and spawn runs that one here: `simgpu run --ranks {nprocs} "
                    f"--rank 0`, or simulated_gpu(..., ranks={nprocs}, rank=0)"
                ) from error
        if nprocs != world.local_ranks:
            raise ValueError(
                f"torch.multiprocessing.spawn is to start nprocs={nprocs}, and this process is rank {world.rank} of "
                f"{world.ranks}, with {world.local_ranks} on its machine: make it one of {nprocs} ranks, "
                f"simulated_gpu(..., ranks={nprocs}, rank=)"
            )
        fn(world.local_rank, *args)
        return None if join else _Ended()

    return one


class _Ended:
    """The result of spawn(join=False): all processes have ended."""

    processes: tuple = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Returns True, because they have ended."""
        return True

    def pids(self) -> list[int]:
        """Returns an empty list."""
        return []
