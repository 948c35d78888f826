"""Which block of simulated memory each tensor's storage lives in.

A simulated tensor is a meta tensor: PyTorch knows its shape, dtype, strides and autograd history, and it has no
data. What it occupies is recorded here, by storage, since views share one. The record ends when PyTorch drops the
last reference to the storage, saved tensors of the graph included: `untyped_storage()` gives one Python object that
lives exactly as long as the storage, so a weak reference to it tells.
"""

import weakref
from collections import deque
from typing import Any

import torch

from simgpu import machine as machines
from simgpu.interrupts import have_room, in_one_piece, raise_later, uninterrupted
from simgpu.tensors.buffers import Buffer

HOST = "host"
_LINE = 64  # bytes, to which PyTorch aligns memory of the host (c10/core/alignment.h, gAlignment)
_host_end = [1 << 40]  # where the next storage of the host begins, in addresses that nothing has
CPU = torch.device("cpu")


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
    """Where one storage lives: in a block of a simulated GPU, or on the host (counted, without values).

    `home`: a SharedBlock, None (0 bytes) or HOST. `nbytes`: of the storage. `values`: its bytes, where they are known
    (see values.py). `made`: by what, if in backward (see formulas.py). `lines`: whose stand-ins
    decided its size, if it is on the host (see stand_ins.py). `end`: what calls `_leave`.

    When the storage dies, C appends the residence to `_left`, which nothing can interrupt, and then calls `_leave`,
    which an interrupt can come before (PyTorch's C++ frees many tensors without a bytecode of Python in between).
    Python calls the callback of the younger reference first.
    """

    __slots__ = ("end", "home", "host_address", "key", "lines", "machine", "made", "nbytes", "values")

    def __new__(cls, storage, machine, home, nbytes):
        end = weakref.ref(storage, _leave)
        residence = super().__new__(cls, storage, _left.append)  # pyright: ignore[reportCallIssue]
        residence.end = end
        return residence

    def __init__(self, storage, machine, home, nbytes):
        super().__init__(storage, _left.append)  # pyright: ignore[reportCallIssue]
        self.key = id(storage)
        self.machine = machine
        self.home = home
        self.nbytes = nbytes
        self.host_address = 0
        self.values: Any = None
        self.made: Any = None
        self.lines: tuple = ()

    @property
    def on_gpu(self) -> bool:
        """Whether it is memory of the GPU, be it 0 bytes."""
        return self.home is not HOST

    @property
    def device(self) -> torch.device:
        """The device that a tensor in it reports."""
        return CPU if self.home is HOST else self.machine.cuda

    @property
    def block(self):
        """Its block of the allocator, or None: on the host, or 0 bytes."""
        return None if self.home is None or self.home is HOST else self.home.block

    @property
    def address(self) -> int:
        """Where it begins on the GPU, bytes; on the host a number that no other storage has, as a name for it (by which
        programs tell whether tensors share memory). 0 if it has no bytes."""
        return self.host_address if self.block is None else self.block.address


_residences: dict[int, Residence] = {}


_left: deque[Residence] = deque()  # whose storage has died, and whose memory is not freed yet


def _leave(_=None) -> None:
    try:
        have_room(_FRAMES)
    except RecursionError:  # it is freed with the next one, or when somebody asks
        return
    uninterrupted(free_dead)


_FRAMES = 48  # of Python's, that it takes at most, and some more


def free_dead() -> None:
    """Frees the memory of storages that have died. There are such only if an interrupt came just then, or where Python
    was about to refuse another call."""
    while _left:
        try:
            residence = _left.popleft()
        except IndexError:  # another thread took it
            return
        if _residences.get(residence.key) is residence:
            del _residences[residence.key]
        home = residence.home
        if home is HOST:
            residence.machine.host_bytes -= residence.nbytes
        elif home is not None:
            home.storages -= 1
            if home.storages == 0 and residence.machine.active:
                residence.machine.allocator.free(home.block)


def free_lost() -> None:
    """Frees those too whose end Python could not tell, since it was about to refuse another call (RecursionError)."""
    free_dead()
    _left.extend(residence for residence in list(_residences.values()) if residence() is None)
    free_dead()


def after_a_lost_interrupt(unraisable, told_by: str) -> bool:
    """For sys.unraisablehook: True if it was an interrupt of what frees a storage's memory, which is then done here, or
    if there was no room for it on Python's stack, when it is done later.

    The signal (Ctrl-C, or a timer whose handler raises) is sent once more, since Python drops what is raised there;
    it comes when this and what runs in the module `told_by` are over.
    """
    if unraisable.object is not _leave:
        return False
    if isinstance(unraisable.exc_value, RecursionError):
        return True
    free_dead()
    return raise_later(unraisable.exc_value, (__name__, told_by)) or not isinstance(unraisable.exc_value, Exception)


def find(storage) -> Residence | None:
    """The residence of an untyped storage, or None if it is not a simulated one."""
    return _residences.get(id(storage))


def of(tensor: torch.Tensor) -> Residence | None:
    """Where a tensor lives if it is a simulated one (on the GPU, or on the host without values), else None."""
    with torch._C.DisableTorchFunction():
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # pyright: ignore[reportAttributeAccessIssue]
            return of(torch._C._functorch.get_unwrapped(tensor))  # pyright: ignore[reportAttributeAccessIssue]
        if not tensor.is_meta:
            return None
        if hasattr(type(tensor), "__tensor_flatten__"):  # a subclass made of other tensors: a nested tensor, a DTensor
            names, _ = tensor.__tensor_flatten__()  # pyright: ignore[reportAttributeAccessIssue]
            return of(getattr(tensor, names[0])) if names else None
        return _residences.get(id(tensor.untyped_storage()))


def any_on(machine) -> bool:
    """Whether any storage takes memory of this GPU, be it one that only a graph of autograd still holds."""
    return any(one.machine is machine and one.block is not None for one in list(_residences.values()))


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of a simulated GPU."""
    found = of(tensor)
    return found is not None and found.home is not HOST


def on_current(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of the simulated GPU that is on."""
    found = of(tensor)
    return found is not None and found.home is not HOST and found.machine is machines.current()


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device that a tensor says it is on."""
    found = of(tensor)
    if found is not None:
        return found.device
    with torch._C.DisableTorchFunction():
        return tensor.device


def settle(storage, machine, block, nbytes: int) -> Residence:
    """Records that `storage` (new) lives in `block` of `machine` (None for 0 bytes)."""
    home = None if block is None else SharedBlock(machine, block)
    return _enter(storage, machine, home, nbytes)


def share(storage, other: Residence, nbytes: int) -> Residence:
    """Records that `storage` (new) lives in the same memory as `other`."""
    residence = _enter(storage, other.machine, other.home, nbytes)
    residence.host_address = other.host_address
    return residence


def settle_on_host(storage, machine, nbytes: int) -> Residence:
    """Records that `storage` (new) stands for host memory without values."""
    machine.host_bytes += nbytes
    residence = _enter(storage, machine, HOST, nbytes)
    residence.host_address = _host_end[0] if nbytes else 0
    _host_end[0] += -(-nbytes // _LINE) * _LINE
    return residence


def _enter(storage, machine, home, nbytes) -> Residence:
    residence = Residence(storage, machine, home, nbytes)
    if home is not None and home is not HOST:
        home.storages += 1
    before = _residences.get(residence.key)
    if before is not None and before() is None:  # see `free_lost`
        _left.append(before)
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


@in_one_piece
def vacate(residence: Residence) -> None:
    """Frees a storage's memory before it dies: here it has values to be computed from, on CUDA it is gone."""
    home, residence.home = residence.home, None
    if home is not None:
        home.storages -= 1
        if home.storages == 0:
            residence.machine.allocator.free(home.block)


@in_one_piece
def resize(residence: Residence, nbytes: int) -> None:
    """Gives the storage a new block of `nbytes` bytes, as UntypedStorage.resize_ does on CUDA: new first, then old."""
    machine = residence.machine
    old = residence.home
    block = machine.allocator.malloc(nbytes, machine.stream)
    residence.home = None if block is None else SharedBlock(machine, block)
    residence.nbytes = nbytes
    if isinstance(residence.values, Buffer):
        machine.host_memory.take(nbytes)
        residence.values.resize(nbytes)
    else:
        residence.values = None
    if residence.home is not None:
        residence.home.storages = 1
    if old is not None:
        old.storages -= 1
        if old.storages == 0:
            machine.allocator.free(old.block)
