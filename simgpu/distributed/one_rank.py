"""Makes the process one rank of N for the length of a `with`: `simgpu.one_rank`."""

import contextlib
from dataclasses import replace

import torch

from simgpu.device import machine as machines
from simgpu.distributed.patches import patch
from simgpu.distributed.world import Alone, Rank, enter, world_of
from simgpu.patches import Patches


class one_rank(contextlib.ContextDecorator):
    """Makes this process rank `rank` of a world of `of` ranks inside the `with`, on the simulated GPU that is on.

    If none is on and the machine has a GPU, it uses that one, so PyTorch's own counters count one rank's memory.

        with simgpu.one_rank(3, of=8) as rank:
            dist.init_process_group("nccl")        # os.environ has what torchrun would have set
            ...                                    # DDP, FSDP2, DTensor: as on that rank's GPU
            print(rank.traffic)                    # bytes of each kind of collective

    Its GPU is cuda:LOCAL_RANK of a machine with `per_node` GPUs (8, or `of` if that is less). The other ranks don't
    exist: collectives are counted, and answered as if every rank had this one's values. At the end, also after an
    exception, process groups are destroyed and os.environ is restored.

    `link` is what connects the GPUs of a machine, "nvlink" or "pcie"; by default NVLink if the GPU has it. Between
    machines it is the network of the DGX with this GPU, or 100 Gb/s for GPUs without one. "infiniband" uses that
    network between all ranks. A number is the bytes/s that a rank reaches in each direction to any other, without
    latency, and `math.inf` means links that take no time.

    Raises TypeError and ValueError for numbers that are not a rank of such a world, and ValueError for a link that is
    unknown or that the GPU does not have. Raises RuntimeError if there is no GPU, simulated or real, or if a process
    group already exists.
    """

    def __init__(self, rank: int, of: int, *, per_node: int | None = None, link: str | float | None = None):
        self.world = world_of(rank, of, per_node, link)
        self._entered: list[contextlib.ExitStack] = []

    def __enter__(self) -> Rank:
        machine, world = machines.current(), self.world
        with contextlib.ExitStack() as leave:
            if machine is None:
                if not torch.cuda.is_available():
                    raise RuntimeError(
                        "one_rank() is one rank on a GPU, and there is none: enter simulated_gpu(...) first, or say "
                        f"simulated_gpu(..., ranks={world.ranks}, rank={world.rank})"
                    )
                machine, world = _real(leave), replace(world, per_node=1)  # its GPU is the only one there
            rank = enter(machine, world, leave)
            self._entered.append(leave.pop_all())
        return rank

    def __exit__(self, *error) -> None:
        if not self._entered:
            raise RuntimeError("this one_rank() was left already, or never entered")
        self._entered.pop().close()


def _real(leave: contextlib.ExitStack) -> Alone:
    """Makes torch.distributed act as one rank of N on this machine's GPU, until `leave` is closed."""
    patches, machine = Patches(), Alone()
    leave.callback(patches.undo)
    patch(patches, machine)
    return machine
