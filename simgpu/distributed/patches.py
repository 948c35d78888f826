"""Replaces functions of torch.distributed while a simulated GPU is on: "nccl" becomes the group of one rank of N.

In a world "gloo" does too. Without a world, gloo on CPU tensors is PyTorch's own, and the dispatch mode refuses its
collectives of simulated tensors (`dispatch/dispatch_mode.py`).
"""

import contextlib
import inspect
import os
from datetime import timedelta
from functools import wraps

import torch

from simgpu.device import machine as machines
from simgpu.device.machine import Machine
from simgpu.distributed import dtensor_handlers, meeting, objects, pipelines, processes, world
from simgpu.distributed.kinds import Traffic
from simgpu.patches import Patches

TIMEOUT = timedelta(minutes=10)
"""The default timeout of NCCL's groups (ProcessGroupNCCL.hpp, kProcessGroupNCCLDefaultTimeout)."""


def patch(patches: Patches, machine: Machine | world.Alone) -> None:
    """Replaces them in torch."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import device_mesh

    from simgpu.distributed.group import RankGroup

    dist, c10d = torch.distributed, torch.distributed.distributed_c10d
    face = _Replacements(machine, RankGroup, patches)
    machine.traffic = Traffic()
    for owner in (dist, c10d):
        patches.apply(owner, "ProcessGroupNCCL", face.group, new="only a build with NCCL has it")
        patches.apply(owner, "is_nccl_available", lambda: True)
    patches.apply(c10d, "_NCCL_AVAILABLE", True)
    if hasattr(c10d, "_create_nccl2_process_group"):  # since torch 2.15
        _choose_nccl(c10d, patches)
        patches.apply(c10d, "_maybe_attach_flight_recorder", face.recorded(c10d._maybe_attach_flight_recorder))
    patches.apply(c10d, "default_pg_nccl_timeout", TIMEOUT)
    patches.apply(c10d, "ProcessGroupGloo", face.gloo(c10d.ProcessGroupGloo))
    patches.apply(c10d, "rendezvous", face.rendezvous(c10d.rendezvous))
    patches.apply(c10d, "_new_process_group_helper", face.made(c10d._new_process_group_helper))
    logger = torch.distributed.Logger
    patches.apply(logger, "set_runtime_stats_and_log", face.logged(logger.set_runtime_stats_and_log))
    receive, batch = pipelines.receiving(c10d.recv_object_list), pipelines.batching(c10d.batch_isend_irecv)
    broadcast = meeting.broadcasting(objects.broadcasting(c10d.broadcast_object_list))
    scatter = meeting.scattering(objects.scattering(c10d.scatter_object_list))
    gather = meeting.gathering(objects.gathering(c10d.gather_object))
    all_gather = meeting.all_gathering(objects.all_gathering(c10d.all_gather_object))
    for owner in (dist, c10d):
        patches.apply(owner, "gather_object", gather)
        patches.apply(owner, "all_gather_object", all_gather)
        patches.apply(owner, "broadcast_object_list", broadcast)
        patches.apply(owner, "scatter_object_list", scatter)
        patches.apply(owner, "recv_object_list", receive)
        patches.apply(owner, "batch_isend_irecv", batch)
    init = face.initialized(c10d.init_process_group)
    for owner in (dist, c10d, device_mesh):
        patches.apply(owner, "init_process_group", init)
    patches.apply(torch.multiprocessing, "spawn", processes.spawning(machine, torch.multiprocessing.spawn))


def _choose_nccl(c10d, patches: Patches) -> None:
    """Makes "nccl" mean ProcessGroupNCCL, which is replaced.

    Since torch 2.15 it means ProcessGroupNCCL2, unless TORCH_DIST_USE_NCCL2 is 0, and is looked up in a table of
    backends (torch/distributed/distributed_c10d.py, _register_builtin_nccl_backend).
    """
    table = c10d.Backend._plugins
    before = table.get("NCCL")
    table["NCCL"] = c10d.Backend._BackendPlugin(c10d._create_nccl_process_group, True)

    def restore() -> None:
        if before is None:
            table.pop("NCCL", None)
        else:
            table["NCCL"] = before

    patches.when_undone(restore)


class _Replacements:
    """Replacements of torch.distributed's functions for one GPU."""

    def __init__(self, machine: Machine | world.Alone, group: type, patches: Patches):
        self.machine = machine
        self.patches = patches
        self.making: tuple = ({"cuda": "nccl"}, None)  # backends and the world's traffic, for the group being made
        self.group = self._for_groups_of(group)
        self.ours = False  # whether the default group being made belongs to a world, or is NCCL's
        self.nccl = False  # whether the group being made is NCCL's
        self.opened = False

    def _for_groups_of(self, kind: type) -> type:
        """Returns a class of groups, named as `kind`, that PyTorch makes without naming backends and traffic."""

        def init(group, *args, **kwargs):
            devices, world = self.making
            kind.__init__(group, *args, devices=devices, world=world, **kwargs)

        return type(kind.__name__, (kind,), {"__init__": init})

    @property
    def world(self):
        return self.machine.world

    @property
    def covered(self) -> bool:
        """Returns whether a second simulated GPU was entered inside this one, so that groups belong to that one."""
        return machines.current() not in (None, self.machine)

    def initialized(self, make):
        """Wraps init_process_group (`make`): rank and size are the world's, or 0 of 1."""
        signature = inspect.signature(make)

        @wraps(make)
        def init_process_group(*args, **kwargs):
            if self.covered:
                return make(*args, **kwargs)
            given = signature.bind_partial(*args, **kwargs).arguments
            backend = given.get("backend")
            if self.world is None and self.machine.join is not None:
                rank, size = self.named(given, "rank", "RANK"), self.named(given, "world_size", "WORLD_SIZE")
                if rank is not None and size is not None:
                    self.machine.join(rank, size)
            if self.world is None and backend is not None and "nccl" not in str(backend).lower():
                return make(*args, **kwargs)
            self.check(given)
            self.open_dtensor()
            outer, self.ours = self.ours, True
            try:
                return make(*args, **kwargs)
            finally:
                self.ours = outer

        return init_process_group

    def open_dtensor(self) -> None:
        """Makes the Python code that DTensor runs per operator see the GPU, because PyTorch calls it without a function
        mode.
        """
        if self.opened:
            return
        self.opened = True
        dtensor_handlers.patch(self.patches, self.seen)

    @staticmethod
    def seen(method):
        """Wraps a method so that it sees the GPU that is on; C++ may keep the method for longer than one GPU is on."""

        @wraps(method)
        def call(*args, **kwargs):
            on = machines.current()
            with contextlib.nullcontext() if on is None else on.seeing():
                return method(*args, **kwargs)

        return call

    def logged(self, log):
        """Wraps Logger.set_runtime_stats_and_log (`log`), which would report on stderr that DDP has no kernel times."""

        @wraps(log)
        def set_runtime_stats_and_log(logger):
            if not self.opened:
                log(logger)

        return set_runtime_stats_and_log

    def recorded(self, attach):
        """Wraps _maybe_attach_flight_recorder (`attach`), whose recorder needs the backend of a group in C++."""

        @wraps(attach)
        def maybe_attach_flight_recorder(group, *args):
            if not isinstance(group, self.group):
                attach(group, *args)

        return maybe_attach_flight_recorder

    def check(self, given: dict) -> None:
        """Raises ValueError if a rank or a size is given that is not this process's."""
        rank, size = self.named(given, "rank", "RANK"), self.named(given, "world_size", "WORLD_SIZE")
        here = self.world
        if here is not None:
            for name, found, wanted in (("rank", rank, here.rank), ("world_size", size, here.ranks)):
                if found is not None and found != wanted:
                    raise ValueError(
                        f"init_process_group was given {name}={found}, and this process is rank {here.rank} of "
                        f"{here.ranks}: give it what simulated_gpu(..., ranks=, rank=) or one_rank(rank, of=ranks) "
                        "was given, or nothing"
                    )
            return
        if size is None:
            raise ValueError(
                "init_process_group knows neither rank nor world size: torchrun's variables are not set. Say which "
                "rank of how many the simulated GPU is: simulated_gpu(..., ranks=8, rank=0), or inside it "
                "`with simgpu.one_rank(0, of=8):`"
            )
        if size != 1:
            raise ValueError(
                f"init_process_group is to be rank {rank} of {size}, and the simulated GPU is alone: say "
                f"simulated_gpu(..., ranks={size}, rank={rank or 0}), or inside it "
                f"`with simgpu.one_rank({rank or 0}, of={size}):`"
            )

    @staticmethod
    def named(given: dict, argument: str, variable: str) -> int | None:
        """Returns a rank or a size from the call, or else from the environment, or None."""
        value = given.get(argument, -1)
        if value is not None and value != -1:
            return value
        text = os.environ.get(variable)
        return int(text) if text is not None and text.lstrip("-").isdigit() else None

    def rendezvous(self, meet):
        """Wraps rendezvous (`meet`): a store of this process is enough, unless the other ranks actually run."""

        @wraps(meet)
        def rendezvous(url, rank=-1, world_size=-1, **kwargs):
            if not self.ours:
                return meet(url, rank, world_size, **kwargs)
            here = self.world or world.World(0, 1, 1)
            if here.started:
                store, rank, size = next(meet(url, rank, world_size, **kwargs))
                meeting.enter(store, rank)
                return iter([(store, rank, size)])
            return iter([(torch.distributed.HashStore(), here.rank, here.ranks)])

        return rendezvous

    def gloo(self, kind):
        """Wraps ProcessGroupGloo (`kind`): in a world, or together with NCCL, there are no other processes to talk
        to.
        """
        face = self

        class Gloo(type):
            def __call__(cls, store, rank, size, timeout=None, **kwargs):
                if face.world is not None or face.nccl:
                    return face.group(store, rank, size, timeout=timeout)
                return kind(store, rank, size, timeout=timeout, **kwargs)

            def __instancecheck__(cls, one):
                return isinstance(one, (kind, face.group))

            def __getattr__(cls, name):
                return getattr(kind, name)

        return Gloo("ProcessGroupGloo", (), {})

    def made(self, make):
        """Wraps _new_process_group_helper (`make`), so that the group knows its backends."""
        signature = inspect.signature(make)

        @wraps(make)
        def new_process_group_helper(*args, **kwargs):
            if self.covered:
                return make(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            config = torch.distributed.distributed_c10d.BackendConfig(given["backend"])
            devices = dict(config.get_device_backend_map())
            outer = self.making, self.nccl
            self.nccl = "nccl" in devices.values()
            self.making = devices, self.machine.traffic
            try:
                made = make(*args, **kwargs)
            finally:
                self.making, self.nccl = outer
            return made

        return new_process_group_helper
