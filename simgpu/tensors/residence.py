"""Which block of simulated memory each tensor's storage lives in.

A simulated tensor is a meta tensor: PyTorch knows its shape, dtype, strides and autograd history, and it has no
data. What it occupies is recorded here, by storage, since views share one. The record ends when PyTorch drops the
last reference to the storage, saved tensors of the graph included: `untyped_storage()` gives one Python object that
lives exactly as long as the storage, so a weak reference to it tells.
"""

import weakref

HOST = "host"


class SharedBlock:
    """A block and the number of storages that live in it; freed with the last of them.

    More than one only where the dispatch mode made PyTorch take an out-of-place path that CUDA would have taken in
    place, so that two storages stand for one piece of memory.
    """

    __slots__ = ("machine", "block", "storages")

    def __init__(self, machine, block):
        self.machine = machine
        self.block = block
        self.storages = 0


class Residence(weakref.ref):
    """Where one storage lives: in a block of a simulated GPU, or on the host (counted, without values)."""

    __slots__ = ("key", "machine", "place", "nbytes", "values")

    def __new__(cls, storage, machine, place, nbytes):
        return super().__new__(cls, storage, _leave)

    def __init__(self, storage, machine, place, nbytes):
        super().__init__(storage, _leave)
        self.key = id(storage)
        self.machine = machine
        self.place = place  # a SharedBlock, None (0 bytes), or HOST
        self.nbytes = nbytes
        self.values = None  # its bytes, where they are known (see values.py)


_residences: dict[int, Residence] = {}


def _leave(residence: Residence) -> None:
    if _residences.get(residence.key) is residence:
        del _residences[residence.key]
    place = residence.place
    if place is HOST:
        residence.machine.host_bytes -= residence.nbytes
    elif place is not None:
        place.storages -= 1
        if place.storages == 0 and residence.machine.active:
            residence.machine.allocator.free(place.block)


def find(storage) -> Residence | None:
    """The residence of an untyped storage, or None if it is not a simulated one."""
    return _residences.get(id(storage))


def settle(storage, machine, block, nbytes: int) -> Residence:
    """Records that `storage` (new) lives in `block` of `machine` (None for 0 bytes)."""
    place = None if block is None else SharedBlock(machine, block)
    return _enter(storage, machine, place, nbytes)


def share(storage, other: Residence, nbytes: int) -> Residence:
    """Records that `storage` (new) lives in the same memory as `other`."""
    return _enter(storage, other.machine, other.place, nbytes)


def settle_on_host(storage, machine, nbytes: int) -> Residence:
    """Records that `storage` (new) stands for host memory without values."""
    machine.host_bytes += nbytes
    return _enter(storage, machine, HOST, nbytes)


def _enter(storage, machine, place, nbytes) -> Residence:
    residence = Residence(storage, machine, place, nbytes)
    if place is not None and place is not HOST:
        place.storages += 1
    _residences[residence.key] = residence
    return residence


_pinned: dict[int, weakref.ref] = {}


def pin(storage) -> None:
    """Notes that a storage of the host is pinned memory. There is none without a driver: it only says how fast copies
    are."""
    key = id(storage)
    _pinned[key] = weakref.ref(storage, lambda _: _pinned.pop(key, None))


def is_pinned(storage) -> bool:
    """Whether a storage of the host was noted as pinned memory."""
    return id(storage) in _pinned


def resize(residence: Residence, nbytes: int) -> None:
    """Gives the storage a new block of `nbytes` bytes, as UntypedStorage.resize_ does on CUDA: new first, then old."""
    machine = residence.machine
    old = residence.place
    block = machine.allocator.malloc(nbytes, machine.stream)
    residence.place = None if block is None else SharedBlock(machine, block)
    residence.nbytes = nbytes
    residence.values = None
    if residence.place is not None:
        residence.place.storages = 1
    if old is not None:
        old.storages -= 1
        if old.storages == 0:
            machine.allocator.free(old.block)
