"""Makes this process one rank of a world of N: `simgpu.one_rank`, with the environment that torchrun would set."""

import contextlib
import operator
import os
import sys
from dataclasses import dataclass
from typing import Any

import torch

from simgpu.device import machine as machines
from simgpu.distributed import clear_caches, links, meeting, messages
from simgpu.distributed.kinds import Traffic

PER_NODE = 8
"""GPUs per machine, as on the HGX boards of A100, H100, H200 and B200 (NVIDIA's datasheets)."""

ADDRESS, PORT = "127.0.0.1", "29500"
"""MASTER_ADDR and MASTER_PORT as torchrun sets them for a run on one machine (torch/distributed/run.py)."""


@dataclass(frozen=True)
class World:
    """A world of `ranks` processes with one GPU each, `per_node` per machine; this one is `rank`.

    `link` is what connects them (`links.Links`). `started` says whether the other ranks are processes that actually
    run, each on a simulated GPU.
    """

    rank: int
    ranks: int
    per_node: int
    link: str | float | None = None
    started: bool = False

    @property
    def local_rank(self) -> int:
        """Returns the index of this rank's GPU on its machine."""
        return self.rank % self.per_node

    @property
    def node(self) -> int:
        """Returns the index of the machine that this rank runs on."""
        return self.rank // self.per_node

    @property
    def nodes(self) -> int:
        """Returns the number of machines."""
        return -(-self.ranks // self.per_node)

    @property
    def local_ranks(self) -> int:
        """Returns the number of ranks on this rank's machine."""
        return min(self.per_node, self.ranks - self.node * self.per_node)

    def environment(self) -> dict[str, str]:
        """Returns the environment variables that torchrun sets for this rank.

        (torch/distributed/elastic/agent/server/local_elastic_agent.py, _start_workers)
        """
        return {
            "LOCAL_RANK": str(self.local_rank),
            "RANK": str(self.rank),
            "GROUP_RANK": str(self.node),
            "ROLE_RANK": str(self.rank),
            "ROLE_NAME": "default",
            "LOCAL_WORLD_SIZE": str(self.local_ranks),
            "WORLD_SIZE": str(self.ranks),
            "GROUP_WORLD_SIZE": str(self.nodes),
            "ROLE_WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": PORT,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "none",
        }


def world_of(rank, ranks, per_node=None, link=None, started: bool = False) -> World:
    """Returns a checked world.

    Raises TypeError for values that are not whole numbers, and ValueError for a rank that the world does not have, or
    for an unknown link.
    """
    ranks = _whole("ranks", ranks)
    rank = _whole("rank", rank)
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: a world has one rank or more")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank={rank} is none of a world of ranks={ranks}: they are 0 to {ranks - 1}")
    per_node = min(PER_NODE, ranks) if per_node is None else _whole("per_node", per_node)
    if per_node < 1:
        raise ValueError(f"per_node={per_node}: a machine has one GPU or more")
    return World(rank, ranks, min(per_node, ranks), links.checked(link), started)


def _whole(name: str, number) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {number!r}") from None


def current() -> World | None:
    """Returns the world that this process is one rank of, or None."""
    machine = machines.current()
    return None if machine is None else machine.world


class Alone:
    """The part of a machine that a rank needs if the GPU is not simulated."""

    spec: Any = None
    links: Any = None
    join: Any = None
    world: World | None = None
    traffic: Traffic = Traffic()


def traffic() -> Traffic:
    """Returns what this process's collectives have moved, since it became a rank or since the simulated GPU is on.

    Raises RuntimeError outside any simulated GPU.
    """
    machine = machines.current()
    if machine is None or machine.traffic is None:
        raise RuntimeError("traffic() is that of a process on a simulated GPU, and none is on")
    return machine.traffic


@dataclass(frozen=True)
class Rank:
    """One rank of a world: its rank, the world's size, and what it has sent (`traffic`)."""

    rank: int
    ranks: int
    local_rank: int
    traffic: Traffic

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks}"


def enter(machine: machines.Machine | Alone, world: World, leave: contextlib.ExitStack) -> Rank:
    """Makes the process one rank of `world`; `leave` restores everything."""
    if group_is_on():
        raise RuntimeError(
            "a process group is there already: call torch.distributed.destroy_process_group() before this process "
            f"becomes rank {world.rank} of {world.ranks}"
        )
    traffic, connected = Traffic(), links.Links(machine.spec, world) if machine.spec else None
    leave.callback(_set, machine, machine.world, machine.traffic, machine.links)
    leave.callback(_put_back, dict(os.environ))
    leave.callback(setattr, sys, "excepthook", sys.excepthook)  # init_process_group's hook reports which rank raised
    clear_caches.begin(leave)
    leave.callback(destroy_groups)
    leave.callback(meeting.leave)
    _set(machine, world, traffic, connected)
    if not world.started:
        os.environ.update(world.environment())
    messages.begin(world.rank, world.ranks)
    return Rank(world.rank, world.ranks, world.local_rank, traffic)


def _set(machine: Any, world: World | None, traffic: Traffic, connected: links.Links | None) -> None:
    machine.world, machine.traffic, machine.links = world, traffic, connected
    if isinstance(machine, machines.Machine):
        machine.allocator.is_gpu(machine.index, machine.count)


def _put_back(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def group_is_on() -> bool:
    """Returns whether a process group exists."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def destroy_groups() -> None:
    """Destroys all process groups."""
    if group_is_on():
        torch.distributed.destroy_process_group()
