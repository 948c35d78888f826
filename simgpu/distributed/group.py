"""The process group of one rank of N, which counts every collective of torch.distributed and answers at once.

`RankGroup` replaces ProcessGroupNCCL, and ProcessGroupGloo in a world whose other ranks don't run. Methods are named as
torch.distributed's C++ and Python call them (torch/csrc/distributed/c10d/ProcessGroup.hpp). Names that changed with
PyTorch 2.12 are here in both forms.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# PyTorch's stubs have only one of the names that a method had in different versions.

from datetime import timedelta

import torch
from torch.distributed import ProcessGroup

from simgpu import unmodeled
from simgpu.device import machine as machines
from simgpu.distributed import meeting, messages, nccl_memory, objects, peer_values, refused, works
from simgpu.distributed.kinds import Collective, Traffic, kind
from simgpu.distributed.nccl_memory import StashedTensors
from simgpu.distributed.works import Finished
from simgpu.storage import storage_map

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Config:
    """ProcessGroupNCCL.NCCLConfig: settings for the communicator are stored, and have no effect here."""

    def __init__(self) -> None:
        self.blocking = self.cga_cluster_size = self.min_ctas = self.max_ctas = -(2**31)
        self.split_share = self.traffic_class = self.comm_name = None


class Options:
    """ProcessGroupNCCL.Options: they are stored, and have no effect here."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = Config()
        self.backend = "nccl"
        self._timeout = timedelta(minutes=10)
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self.split_from = None
        self.split_color = 0


class RankGroup(ProcessGroup):
    """Rank `rank` of a group of `size`, whose other ranks don't exist.

    `traffic` is what this group has moved (`Traffic`), and `world` what all have. `devices` is the backend per type
    of device, "nccl" or "gloo".
    """

    is_simulated_rank = True  # for `operators.is_rank`
    Options = Options
    NCCLConfig = Config

    def __init__(self, store, rank: int, size: int, options=None, timeout=None, *, devices=None, world=None):
        super().__init__(rank, size)
        self.devices, self._world = devices or {"cuda": "nccl"}, world
        self.traffic = Traffic()
        self.options = options if options is not None else Options()
        self._store = store
        self._sequence = 0
        self._names = ["", ""]  # name and description
        self._streams: dict = {}  # stream of each communicator
        self._coalescing = False
        self._together: list = []  # end times of the collectives of one coalesced NCCL call
        self.expected: list = []  # see objects.py
        self._stashed = StashedTensors()

    # --- what it is

    def getBackendName(self) -> str:
        """Returns "nccl", or "gloo" if the group is for CPU tensors only."""
        return self.devices.get("cuda") or next(iter(self.devices.values()))

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        """Returns the group's name."""
        return self._names[0]

    def setGroupName(self, name: str) -> None:
        """Sets the group's name."""
        self._names[0] = name

    def getGroupDesc(self) -> str:
        """Returns the group's description."""
        return self._names[1]

    def setGroupDesc(self, description: str) -> None:
        """Sets the group's description."""
        self._names[1] = description

    group_name, group_desc = property(getGroupName), property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self.devices]

    def _get_backend(self, device) -> "RankGroup":
        kind = torch.device(device).type
        if kind not in self.devices:
            raise RuntimeError(f"No backend type associated with device type {kind}")
        return self

    @property
    def supports_splitting(self) -> bool:
        """Returns whether the backend can split off groups itself, as NCCL's does."""
        return "nccl" in self.devices.values()

    supports_coalescing = supports_splitting
    supports_time_estimate = False

    def get_group_store(self):
        """Returns the store that the group was made with."""
        return self._store

    def comm_split_count(self) -> int:
        """Returns the number of groups that were split off."""
        return self._sequence

    def split_group(
        self, new_ranks, timeout=None, opts=None, group_name=None, group_desc=None, device_types=None
    ) -> "RankGroup | None":
        """Returns the group of a subset of the ranks, or None if this rank is not in it."""
        if self.rank() not in new_ranks:
            return None
        self._sequence += 1
        made = type(self)(self._store, sorted(new_ranks).index(self.rank()), len(new_ranks), opts)
        kinds = None if device_types is None else {torch.device(one).type for one in device_types}
        made.devices = {kind: name for kind, name in self.devices.items() if kinds is None or kind in kinds}
        made._world = self._world
        made._set_group_name(group_name or "")
        made._set_group_desc(group_desc or "")
        return made

    def _nothing(self, *args, **kwargs) -> None:
        """Does nothing: no collective is pending, nothing is waited for, and no other rank could be out of step.

        NCCL's communicator and its mapping of a pool's memory are not the allocator's, and calls of a group count one
        by one.
        """

    abort = shutdown = _wait_for_pending_works = set_timeout = _set_default_timeout = _add_ephemeral_timeout = _nothing
    eager_connect_single_device = perform_nocolor_split = register_mem_pool = deregister_mem_pool = _nothing
    _set_sequence_number_for_group = _group_start = _group_end = _nothing

    def _get_sequence_number_for_group(self) -> int:
        return len(self.traffic)

    def _verify_work_timeout(self, work, timeout) -> bool:
        return True

    def _has_hooks(self) -> bool:
        return False

    def _is_initialized(self) -> bool:
        return True

    # --- counting

    def _check(self, name: str, tensors, operation) -> None:
        for tensor in tensors:
            kind = storage_map.device_of(tensor).type
            if kind not in self.devices:
                raise RuntimeError(f"No backend type associated with device type {kind}")
        if self.devices.get("cuda") == "nccl":
            refused.check(name, [tensor for tensor in tensors if storage_map.on_gpu(tensor)], operation)

    def _count(
        self, name: str, tensors, nbytes: int, root: bool = True, opts=None, peer: int | None = None, operation=None
    ) -> works.Arrival | None:
        """Records a collective of `nbytes` on `tensors`, and adds it to the clock; returns when it is done."""
        self._check(name, tensors, operation)
        machine, size = machines.current(), self.size()
        if machine is not None and "nccl" in self.devices.values():
            if name not in ("send", "recv"):
                self._stream_of("device", machine)
            if size > 1:
                machine.unmodeled.beside(unmodeled.NCCL)
        one = Collective(name, nbytes, size, kind(name).bytes_sent(nbytes, size, root), self.group_name)
        self.traffic.add(one)
        if self._world is not None:
            self._world.add(one)
        on_gpu = any(map(storage_map.on_gpu, tensors)) if tensors else "cuda" in self.devices
        arrival = self._take_time(one, not getattr(opts, "asyncOp", True), peer) if on_gpu else None
        if self._coalescing and arrival is not None:
            self._together.append(arrival)
        return arrival

    def _take_time(self, one: Collective, waited_for: bool, peer: int | None) -> works.Arrival | None:
        """Adds a collective to the clock; returns its arrival, or None if it takes no time.

        A collective that Python waits for at once runs on the current stream, any other on the group's, and a message
        on the stream of its pair. Messages that are coalesced run in parallel.
        """
        machine, ranks = machines.current(), self._ranks()
        if machine is None or one.ranks == 1 or machine.links is None:
            return None
        if peer is None:
            own = machine.stream if waited_for else self._stream_of("device", machine)
            return works.collective(machine, one, ranks, own)
        own = (one.name, ranks, peer) if self._coalescing else self._stream_of(self._pair(peer), machine)
        return works.message(machine, one, ranks, ranks[self.rank()], ranks[peer], own)

    def _work(self, outputs, inputs, opts, done: works.Arrival | None) -> Finished:
        """Returns the handle of a collective, which keeps the inputs until it is waited for, if it is asynchronous."""
        work = Finished(outputs, inputs if getattr(opts, "asyncOp", True) else (), done)
        self._stashed.add(work.kept)
        return work

    # --- collectives

    def allreduce(self, tensors, opts=None, timeout=None) -> Finished:
        """Gives every rank the sum of all tensors, or another reduction by `opts.reduceOp`."""
        tensors = _listed(tensors)
        operation = getattr(opts, "reduceOp", opts)
        done = self._count("all_reduce", tensors, _bytes(tensors), opts=opts, operation=operation)
        for tensor in tensors:
            peer_values.reduce(tensor, tensor, operation, self.size())
        return self._work(tensors, tensors, opts, done)

    def allreduce_coalesced(self, tensors, opts=None) -> Finished:
        """Reduces several tensors in one all-reduce."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors, opts=None, timeout=None) -> Finished:
        """Gives every rank the root's tensors, which have this rank's values."""
        tensors = _listed(tensors)
        done = self._count("broadcast", tensors, _bytes(tensors), opts=opts)
        self._bring(tensors, getattr(opts, "rootRank", opts))
        return self._work(tensors, tensors, opts, done)

    def _bring(self, tensors, root) -> None:
        """Writes what objects.py expects from the root."""
        if root != self.rank() and self.expected:
            peer_values.copy(tensors, [self.expected.pop(0)])
        elif root != self.rank():
            objects.refuse_states(self.rank(), root)

    def reduce(self, tensors, opts=None, op=None, timeout=None) -> Finished:
        """Gives the root the sum of all."""
        tensors = _listed(tensors)
        operation = op if op is not None else getattr(opts, "reduceOp", None)
        done = self._count("reduce", tensors, _bytes(tensors), opts=opts, operation=operation)
        if getattr(opts, "rootRank", opts) == self.rank():
            for tensor in tensors:
                peer_values.reduce(tensor, tensor, operation, self.size())
        return Finished(tensors, arrival=done)

    def allgather(self, outputs, inputs, opts=None, timeout=None) -> Finished:
        """Gives every rank a list of all tensors."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        done = self._count("all_gather", [*inputs, *_flat(outputs)], _bytes(_flat(outputs)), opts=opts)
        held = []
        for ones, given in zip(outputs, inputs, strict=True):
            held += nccl_memory.flat(self, ones)
            peer_values.copy_alike(ones, given)
        return self._work(held or _flat(outputs), inputs, opts, done)

    def all_gather_single(self, output, given, opts=None, timeout=None) -> Finished:
        """Gives every rank all tensors, concatenated in one."""
        done = self._count("all_gather", [output, given], output.nbytes, opts=opts)
        peer_values.repeat(output, given, self.size())
        return self._work([output], [given], opts, done)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs, inputs, opts=None) -> Finished:
        """Gathers several tensors in one all-gather."""
        done = self._count("all_gather", [*outputs, *inputs], _bytes(outputs), opts=opts)
        for output, given in zip(outputs, inputs, strict=True):
            peer_values.repeat(output, given, self.size())
        return self._work(outputs, inputs, opts, done)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs, inputs, opts=None) -> Finished:
        """Gives every rank lists of all tensors."""
        done = self._count("all_gather", [*inputs, *_flat(outputs)], self.size() * _bytes(inputs), opts=opts)
        for ones in outputs:
            peer_values.copy(ones, inputs)
        return Finished(_flat(outputs), arrival=done)

    def reduce_scatter(self, outputs, inputs, opts=None, timeout=None) -> Finished:
        """Gives each rank its own entry of a list of sums."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        operation = getattr(opts, "reduceOp", opts)
        given = _flat(inputs)
        done = self._count("reduce_scatter", [*outputs, *given], _bytes(given), opts=opts, operation=operation)
        held = []
        for output, ones in zip(outputs, inputs, strict=True):
            held += nccl_memory.flat(self, ones)
            peer_values.reduce(output, ones[self.rank()], operation, self.size())
        return self._work(outputs, [*given, *held], opts, done)

    def reduce_scatter_single(self, output, given, opts=None, timeout=None) -> Finished:
        """Gives each rank its own part of the sum."""
        operation = getattr(opts, "reduceOp", opts)
        done = self._count("reduce_scatter", [output, given], given.nbytes, opts=opts, operation=operation)
        peer_values.reduce_part(output, given, operation, self.rank(), self.size())
        return self._work([output], [given], opts, done)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None) -> Finished:
        """Reduces several tensors in one reduce-scatter."""
        operation = getattr(opts, "reduceOp", opts)
        done = self._count("reduce_scatter", [*outputs, *inputs], _bytes(inputs), opts=opts, operation=operation)
        for output, given in zip(outputs, inputs, strict=True):
            peer_values.reduce_part(output, given, operation, self.rank(), self.size())
        return self._work(outputs, inputs, opts, done)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(self, output, given, output_sizes=None, input_sizes=None, opts=None, timeout=None):
        """Gives each rank a part of every rank's tensor. Raises RuntimeError if the sizes don't match the tensor."""
        _check_parts(output_sizes, output, self.size())
        _check_parts(input_sizes, given, self.size())
        done = self._count("all_to_all", [output, given], given.nbytes, opts=opts)
        peer_values.exchange(output, given, output_sizes, input_sizes, self.rank(), self.size())
        return self._work([output], [given], opts, done)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs, inputs, opts=None, timeout=None) -> Finished:
        """Gives each rank a tensor of every rank's list."""
        done = self._count("all_to_all", [*outputs, *inputs], _bytes(inputs), opts=opts)
        peer_values.copy_alike(outputs, inputs[self.rank()])
        return self._work(outputs, inputs, opts, done)

    def gather(self, outputs, inputs, opts=None, timeout=None) -> Finished:
        """Gives the root a list of all tensors."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        root = getattr(opts, "rootRank", opts) == self.rank()
        done = self._count("gather", [*inputs, *_flat(outputs)], _bytes(inputs), root, opts=opts)
        for ones in outputs if root else ():
            peer_values.copy(ones, [inputs[0]] * len(ones))
        return Finished(_flat(outputs), arrival=done)

    def scatter(self, outputs, inputs, opts=None, timeout=None) -> Finished:
        """Gives each rank its own entry of the root's list."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        root = getattr(opts, "rootRank", opts) == self.rank()
        done = self._count("scatter", [*outputs, *_flat(inputs)], _bytes(outputs), root, opts=opts)
        given = None if self.expected else inputs[0] if root else objects.list_of_all()
        if given:
            peer_values.copy(outputs, [given[self.rank()]])
        else:
            self._bring(outputs, None)
        return Finished(outputs, arrival=done)

    def send(self, tensors, dst: int = -1, tag: int = 0) -> Finished:
        """Sends tensors to one other rank."""
        done = self._count("send", tensors, _bytes(tensors), peer=dst)
        for tensor in tensors:
            messages.send((self._ranks(), self.rank(), dst), tensor)
        return self._point_to_point(tensors, dst, done)

    def recv(self, tensors, src: int = -1, tag: int = 0) -> Finished:
        """Receives tensors from one other rank.

        Their values are unknown, unless the message decides what follows.
        """
        done = self._count("recv", tensors, _bytes(tensors), peer=src)
        for tensor in tensors:
            if not messages.receive((self._ranks(), src, self.rank()), tensor):
                peer_values.forget([tensor])
        work = self._point_to_point(tensors, src, done)
        work.source = src
        return work

    def _pair(self, peer: int) -> tuple[int, int]:
        return min(self.rank(), peer), max(self.rank(), peer)

    def _point_to_point(self, tensors, peer: int, done: works.Arrival | None) -> Finished:
        """Records these tensors as used on NCCL's stream (pointToPoint records it); a single message's work holds
        them.
        """
        pair = "device" if self._coalescing else self._pair(peer)
        for tensor in tensors:
            place = storage_map.of(tensor)
            if place is not None and place.block is not None:
                place.machine.allocator.record_stream(place.block, self._stream_of(pair, place.machine))
        return Finished(() if self._coalescing else tensors, arrival=done)

    def _stream_of(self, who, machine) -> int:
        """Returns the stream of a communicator.

        The group's own is that of "device", and each pair that sends separately has one. It is taken from PyTorch's
        pool at first use (initNCCLComm).
        """
        if who not in self._streams:
            self._streams[who] = machine.new_stream_id(-int(self.options.is_high_priority_stream))
        return self._streams[who]

    def _ranks(self) -> tuple[int, ...]:
        """Returns the ranks of the world that are in this group."""
        known = torch.distributed.distributed_c10d._world.pg_group_ranks.get(self)
        return tuple(range(self.size())) if known is None else tuple(known)

    def recv_anysource(self, tensors, tag: int = 0) -> Finished:
        """Receives from any other rank, which is taken to be the next one."""
        return self.recv(tensors, (self.rank() + 1) % self.size(), tag)

    def barrier(self, opts=None, timeout=None) -> Finished:
        """Waits until all ranks have arrived."""
        done = self._count("barrier", (), 0, opts=opts)
        self._meet()
        kept = nccl_memory.barrier(self, getattr(opts, "device", None), not getattr(opts, "asyncOp", False))
        return Finished(kept=kept, arrival=done)

    def monitored_barrier(self, timeout=None, wait_all_ranks: bool = False) -> None:
        """Implements gloo's barrier."""
        self._count("barrier", (), 0)
        self._meet()

    def _meet(self) -> None:
        """Waits for the ranks of this group that are processes."""
        if meeting.here is not None:
            meeting.here.barrier(self._ranks())

    def start_coalescing(self, device) -> None:
        """Begins a series of collectives that would be one NCCL call."""
        self._coalescing, self._together = True, []

    def end_coalescing(self, device) -> Finished:
        """Ends such a series."""
        self._coalescing = False
        return Finished(arrival=works.Arrivals(self._together))

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing


def _check_parts(sizes, tensor: torch.Tensor, ranks: int) -> None:
    """Raises PyTorch's error for invalid split sizes (torch/csrc/distributed/c10d/Utils.hpp, checkSplitSizes)."""
    if not sizes:
        if tensor.shape[0] % ranks:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
    elif len(sizes) != ranks:
        raise RuntimeError("Number of tensor splits not equal to group size")
    elif sum(sizes) != tensor.shape[0]:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")


def _listed(tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _flat(lists) -> list[torch.Tensor]:
    return [one for ones in lists for one in _listed(ones)]


def _bytes(tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)
