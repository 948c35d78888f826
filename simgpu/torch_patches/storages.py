"""Replaces methods of torch.UntypedStorage for the simulated GPU: its device, its address, and copies of its bytes."""

from functools import wraps

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.allocator.out_of_memory import OutOfMemory
from simgpu.device import machine as machines
from simgpu.dispatch import host_copies
from simgpu.dispatch.default_devices import means_gpu, named
from simgpu.dispatch.function_mode import FunctionMode
from simgpu.errors import NotModelledError, NoValueError
from simgpu.interrupts import defers_signals
from simgpu.patches import Patches
from simgpu.storage import storage_map
from simgpu.storage.host_memory import Buffer
from simgpu.storage.storage_map import CPU


def patch(patches: Patches, mode: FunctionMode) -> None:
    """Replaces them in torch; `mode` is the GPU's function mode."""
    storage = torch.UntypedStorage
    patches.apply(storage, "__new__", made(storage.__new__))
    patches.apply(storage, "device", device_of(storage.device))
    patches.apply(storage, "resize_", resized(storage.resize_))
    patches.apply(storage, "data_ptr", address(storage.data_ptr))
    patches.apply(storage, "to", to(mode, storage.to))
    patches.apply(storage, "cuda", cuda(storage.cuda))
    patches.apply(storage, "clone", clone(mode, storage.clone))
    patches.apply(storage, "is_shared", is_shared(storage.is_shared))
    patches.apply(storage, "__repr__", represented(storage.__repr__))
    patches.apply(storage, "cpu", cpu(storage.cpu))
    for name in ("_write_file", "tolist", "__getitem__", "__setitem__"):
        patches.apply(storage, name, refused(getattr(storage, name)))
    patches.apply(storage, "_set_from_file", filled(storage._set_from_file))
    tag = refused(torch.serialization.location_tag, of_bytes=False)
    patches.apply(torch.serialization, "location_tag", tag)  # for saved tensors


def on_gpu(storage) -> bool:
    """Returns whether a storage is memory of the simulated GPU."""
    place = storage_map.find(storage)
    return place is not None and place.on_gpu


def made(new):
    """Wraps torch.UntypedStorage(size or bytes, device=...) (`new`), which allocates a block of that size.

    (torch/csrc/Storage.cpp, THPStorage_pynew) The content is ignored.
    """

    def call(kind, *args, device=None, **kwargs):
        if not means_gpu(device):
            return new(kind, *args, **kwargs) if device is None else new(kind, *args, device=device, **kwargs)
        size = new(kind, *args, device="meta", **kwargs).nbytes() if args and isinstance(args[0], int) else None
        size = len(new(kind, *args, **kwargs)) if size is None else size
        return torch.empty(size, dtype=torch.uint8, device=machines.cuda()).untyped_storage()

    return call


def device_of(getter) -> property:
    """Replaces torch.UntypedStorage.device (`getter`)."""

    def device(storage):
        place = storage_map.find(storage)
        return getter.__get__(storage) if place is None else place.device

    return property(device, doc=getter.__doc__)


def resized(resize):
    """Wraps torch.UntypedStorage.resize_ (`resize`): the storage gets a new block, and then its old one is freed.

    (aten/src/ATen/native/cuda/Resize.cpp, resize_bytes_cuda)
    """

    @wraps(resize)
    def resize_(storage, size):
        if on_gpu(storage):
            try:
                storage_map.resize(storage_map.find(storage), size)  # pyright: ignore[reportArgumentType]
            except OutOfMemory as error:
                raise torch.OutOfMemoryError(str(error)) from None
        return resize(storage, size)

    return resize_


def address(data_ptr):
    """Wraps torch.UntypedStorage.data_ptr (`data_ptr`): returns the address of the block.

    On the host, without values, it is a number that no other storage has.
    """

    @wraps(data_ptr)
    def call(storage):
        place = storage_map.find(storage)
        return data_ptr(storage) if place is None or not place.address else place.address

    return call


@defers_signals
def _copied(mode: FunctionMode, storage, to_host: bool = False, non_blocking: bool = False) -> torch.UntypedStorage:
    """Copies a storage's bytes, to a separate block or to the host.

    torch.load(map_location="cuda") copies in this way (torch/_utils.py, _to).
    """
    with torch._C.DisableTorchFunction():
        kind = "cpu" if storage_map.find(storage) is None else "meta"
        with _disable_current_modes():
            source = torch.empty(0, dtype=torch.uint8, device=kind).set_(storage)
        if not to_host and on_gpu(storage):
            return source.clone().untyped_storage()
        return host_copies.copied(mode.dispatch, source, None, None, to_host, non_blocking).untyped_storage()


def to(mode: FunctionMode, move):
    """Wraps torch.UntypedStorage.to (`move`). A storage on cuda:0 is copied if the device is given as "cuda"."""

    @wraps(move)
    def call(storage, *, device, non_blocking=False):
        gpu = machines.cuda()
        there = gpu if means_gpu(device) else named(device)
        if storage_map.find(storage) is None and (there != gpu or storage.device.type == "meta"):
            return move(storage, device=there, non_blocking=non_blocking)
        if storage.device == named(device):
            return storage
        if there.type not in ("cuda", "cpu"):  # pyright: ignore[reportOptionalMemberAccess]
            raise NotModelledError(f"a storage of the simulated GPU goes to the GPU or to the CPU, not to {device!r}")
        return _copied(mode, storage, there != gpu, non_blocking)

    return call


def cuda(move):
    """Wraps torch.UntypedStorage.cuda (`move`)."""

    @wraps(move)
    def call(storage, device=None, non_blocking=False):
        return storage.to(device=torch.device("cuda", device) if device else "cuda", non_blocking=non_blocking)

    return call


def cpu(move):
    """Wraps torch.UntypedStorage.cpu (`move`)."""

    @wraps(move)
    def call(storage):
        return move(storage) if storage_map.find(storage) is None else storage.to(device=CPU)

    return call


def clone(mode: FunctionMode, copy):
    """Wraps torch.UntypedStorage.clone (`copy`)."""

    @wraps(copy)
    def call(storage):
        return copy(storage) if storage_map.find(storage) is None else _copied(mode, storage, not on_gpu(storage))

    return call


def is_shared(asked):
    """Wraps torch.UntypedStorage.is_shared (`asked`), which is true for all GPU memory.

    (torch/csrc/StorageSharing.cpp, THPStorage_isShared)
    """

    @wraps(asked)
    def call(storage):
        return on_gpu(storage) or asked(storage)

    return call


def represented(representation):
    """Wraps torch.UntypedStorage.__repr__ (`representation`); bytes without values are not shown."""

    @wraps(representation)
    def call(storage):
        if storage_map.find(storage) is None:
            return representation(storage)
        return f"...\n[torch.storage.UntypedStorage(device={storage.device}) of size {storage.nbytes()}]"

    return call


def filled(fill):
    """Wraps torch.UntypedStorage._set_from_file (`fill`), with which old files and pickles are read."""

    @wraps(fill)
    def call(storage, *args, **kwargs):
        place = storage_map.find(storage)
        known = place is not None and type(place.values) is Buffer
        return fill(place.values.storage if known else storage, *args, **kwargs)  # pyright: ignore[reportOptionalMemberAccess]

    return call


def refused(read, of_bytes: bool = True):
    """Wraps a function (`read`) that reads or writes a storage's bytes, as torch.save and pickle do.

    `of_bytes` says that the function accesses the bytes itself, so it gets them from where they are stored, if they
    are. Raises NoValueError if there are no values.
    """

    @wraps(read)
    def call(storage, *args, **kwargs):
        place = storage_map.find(storage)
        if place is not None and type(place.values) is Buffer:
            return read(place.values.storage if of_bytes else storage, *args, **kwargs)
        if place is not None:
            raise NoValueError(
                f"torch.save and pickle write values, and the {storage.nbytes()} B of a simulated tensor have none: "
                f"the simulated GPU computes memory, not values. {machines.remedy()}; or save what was made on the CPU."
            )
        return read(storage, *args, **kwargs)

    return call
