"""Maps each tensor's storage to its block of simulated memory.

A simulated tensor is a meta tensor: PyTorch knows its shape, dtype, strides and autograd history, but it has no data.
Its memory is recorded here by storage, because views share one. The record ends when PyTorch drops the last reference
to the storage, including saved tensors of the graph. `untyped_storage()` returns one Python object that lives exactly
as long as the storage, so a weak reference to it reports its end.
"""

import weakref
from collections import deque
from typing import Any

import torch

from simgpu.device import machine as machines
from simgpu.interrupts import defers_signals, have_room, raise_later, run_deferring_signals
from simgpu.storage.host_memory import Buffer

HOST = "host"
_LINE = 64  # the alignment in bytes of PyTorch's host memory (c10/core/alignment.h, gAlignment)
_host_end = [1 << 40]  # the next host storage's address, in a range that nothing else uses
CPU = torch.device("cpu")


class SharedBlock:
    """A block and the number of storages in it; freed with the last of them.

    There is more than one only if the dispatch mode made PyTorch work out of place where CUDA works in place, so that
    two storages represent one piece of memory.
    """

    __slots__ = ("machine", "block", "storages")

    def __init__(self, machine, block):
        self.machine = machine
        self.block = block
        self.storages = 0


class StorageEntry(weakref.ref):
    """Records where one storage is: in a block of a simulated GPU, or on the host (counted, without values).

    `home` is a SharedBlock, None (0 bytes) or HOST. `nbytes` is the storage's size. `values` are its bytes if they are
    known (see values.py). `made` is its origin if it was made in backward (see formulas.py). `lines` are the lines
    whose placeholder values decided its size, if it is on the host (placeholder_values.py). `end` is the weak reference
    that calls `_leave`.

    When the storage dies, C appends the entry to `_left`, which nothing can interrupt. Then it calls `_leave`, and
    an interrupt can come before that (PyTorch's C++ frees many tensors without Python bytecode in between). Python
    calls the callback of the younger reference first.
    """

    __slots__ = ("end", "home", "host_address", "key", "lines", "machine", "made", "nbytes", "values")

    def __new__(cls, storage, machine, home, nbytes):
        end = weakref.ref(storage, _leave)
        entry = super().__new__(cls, storage, _left.append)  # pyright: ignore[reportCallIssue]
        entry.end = end
        return entry

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
        """Returns whether it is memory of the GPU, even if it is 0 bytes."""
        return self.home is not HOST

    @property
    def device(self) -> torch.device:
        """Returns the device that a tensor in it reports."""
        return CPU if self.home is HOST else self.machine.cuda

    @property
    def block(self):
        """Returns its block of the allocator, or None on the host and for 0 bytes."""
        return None if self.home is None or self.home is HOST else self.home.block

    @property
    def address(self) -> int:
        """Returns its address on the GPU, or on the host a number that no other storage has; 0 if it has no bytes.

        By this number programs find out whether tensors share memory.
        """
        return self.host_address if self.block is None else self.block.address


_entries: dict[int, StorageEntry] = {}


_left: deque[StorageEntry] = deque()  # storages that have died and whose memory is not freed yet


def _leave(_=None) -> None:
    try:
        have_room(_FRAMES)
    except RecursionError:  # it is freed with the next one, or when memory is queried
        return
    run_deferring_signals(free_dead)


_FRAMES = 48  # an upper bound of the Python frames that it needs


def free_dead() -> None:
    """Frees the memory of storages that have died.

    Such storages remain only after an interrupt at that moment, or if Python was at its recursion limit.
    """
    while _left:
        try:
            entry = _left.popleft()
        except IndexError:  # a different thread took it
            return
        if _entries.get(entry.key) is entry:
            del _entries[entry.key]
        home = entry.home
        if home is HOST:
            entry.machine.host_bytes -= entry.nbytes
        elif home is not None:
            home.storages -= 1
            if home.storages == 0 and entry.machine.active:
                entry.machine.allocator.free(home.block)


def free_lost() -> None:
    """Also frees storages whose end Python could not report because of its recursion limit (RecursionError)."""
    free_dead()
    _left.extend(entry for entry in list(_entries.values()) if entry() is None)
    free_dead()


def after_a_lost_interrupt(unraisable, told_by: str) -> bool:
    """Handles an error in sys.unraisablehook; returns whether it came from freeing a storage's memory.

    An interrupted free is completed here. If there was no room on Python's stack, it is completed later. The signal
    (Ctrl-C, or a timer whose handler raises) is sent again, because Python drops exceptions raised there. It arrives
    when this and what runs in the module `told_by` are done.
    """
    if unraisable.object is not _leave:
        return False
    if isinstance(unraisable.exc_value, RecursionError):
        return True
    free_dead()
    return raise_later(unraisable.exc_value, (__name__, told_by)) or not isinstance(unraisable.exc_value, Exception)


def find(storage) -> StorageEntry | None:
    """Returns the entry of an untyped storage, or None if it is not a simulated one."""
    return _entries.get(id(storage))


def of(tensor: torch.Tensor) -> StorageEntry | None:
    """Returns the entry of a simulated tensor (on the GPU, or on the host without values), else None."""
    with torch._C.DisableTorchFunction():
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # pyright: ignore[reportAttributeAccessIssue]
            return of(torch._C._functorch.get_unwrapped(tensor))  # pyright: ignore[reportAttributeAccessIssue]
        if not tensor.is_meta:
            return None
        # a subclass that wraps other tensors: a nested tensor, a DTensor
        if hasattr(type(tensor), "__tensor_flatten__"):
            names, _ = tensor.__tensor_flatten__()  # pyright: ignore[reportAttributeAccessIssue]
            return of(getattr(tensor, names[0])) if names else None
        return _entries.get(id(tensor.untyped_storage()))


def any_on(machine) -> bool:
    """Returns whether any storage uses memory of this GPU, also one that only an autograd graph holds."""
    return any(one.machine is machine and one.block is not None for one in list(_entries.values()))


def on_gpu(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is on a simulated GPU."""
    found = of(tensor)
    return found is not None and found.home is not HOST


def on_current(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is on the simulated GPU in use."""
    found = of(tensor)
    return found is not None and found.home is not HOST and found.machine is machines.current()


def device_of(tensor: torch.Tensor) -> torch.device:
    """Returns the device that a tensor reports."""
    found = of(tensor)
    if found is not None:
        return found.device
    with torch._C.DisableTorchFunction():
        return tensor.device


def bind_storage(storage, machine, block, nbytes: int) -> StorageEntry:
    """Records that `storage` (new) is in `block` of `machine` (None for 0 bytes)."""
    home = None if block is None else SharedBlock(machine, block)
    return _enter(storage, machine, home, nbytes)


def share(storage, other: StorageEntry, nbytes: int) -> StorageEntry:
    """Records that `storage` (new) is in the same memory as `other`."""
    entry = _enter(storage, other.machine, other.home, nbytes)
    entry.host_address = other.host_address
    return entry


def bind_host_storage(storage, machine, nbytes: int) -> StorageEntry:
    """Records that `storage` (new) represents host memory without values."""
    machine.host_bytes += nbytes
    entry = _enter(storage, machine, HOST, nbytes)
    entry.host_address = _host_end[0] if nbytes else 0
    _host_end[0] += -(-nbytes // _LINE) * _LINE
    return entry


def _enter(storage, machine, home, nbytes) -> StorageEntry:
    entry = StorageEntry(storage, machine, home, nbytes)
    if home is not None and home is not HOST:
        home.storages += 1
    before = _entries.get(entry.key)
    if before is not None and before() is None:  # see `free_lost`
        _left.append(before)
    _entries[entry.key] = entry
    return entry


_pinned: dict[int, weakref.ref] = {}


def pin(storage) -> None:
    """Marks a host storage as pinned memory.

    Without a driver there is no pinned memory, so the mark only decides how fast copies are.
    """
    key = id(storage)
    _pinned[key] = weakref.ref(storage, lambda _: _pinned.pop(key, None))


def is_pinned(storage) -> bool:
    """Returns whether a host storage is marked as pinned memory."""
    return id(storage) in _pinned


@defers_signals
def release(entry: StorageEntry) -> None:
    """Frees a storage's memory before the storage dies: it is still needed here to compute values, but not on CUDA."""
    home, entry.home = entry.home, None
    if home is not None:
        home.storages -= 1
        if home.storages == 0:
            entry.machine.allocator.free(home.block)


@defers_signals
def resize(entry: StorageEntry, nbytes: int) -> None:
    """Gives the storage a new block of `nbytes` bytes, as UntypedStorage.resize_ does on CUDA: new first, then old
    freed.
    """
    machine = entry.machine
    old = entry.home
    block = machine.allocator.malloc(nbytes, machine.stream)
    entry.home = None if block is None else SharedBlock(machine, block)
    entry.nbytes = nbytes
    if isinstance(entry.values, Buffer):
        machine.host_memory.take(nbytes)
        entry.values.resize(nbytes)
    else:
        entry.values = None
    if entry.home is not None:
        entry.home.storages = 1
    if old is not None:
        old.storages -= 1
        if old.storages == 0:
            machine.allocator.free(old.block)
