"""Attributes of torch that are others while a simulated GPU is on, because PyTorch asks no mode about them."""

from functools import wraps

import torch
import torch.export
from torch.overrides import _get_current_function_mode_stack

from simgpu.errors import NotModelledError, NoValueError, naming_cuda_types
from simgpu.memory.out_of_memory import OutOfMemory
from simgpu.modes import host_copies
from simgpu.modes.devices import means_gpu
from simgpu.modes.function_mode import FunctionMode
from simgpu.patches import Patches
from simgpu.tensors import engine, residence
from simgpu.tensors.residence import CUDA, on_gpu


def patch(patches: Patches, mode: FunctionMode) -> None:
    """Puts them into torch; `mode` is the GPU's."""
    patches.apply(torch.Tensor, "record_stream", record_stream)
    patches.apply(torch.Tensor, "pin_memory", pin_memory)
    storage = torch.UntypedStorage
    patches.apply(storage, "resize_", resized_storage(storage.resize_))
    patches.apply(storage, "data_ptr", storage_address(storage.data_ptr))
    patches.apply(storage, "to", storage_to(mode, storage.to))
    patches.apply(storage, "cuda", storage_cuda(mode, storage.cuda))
    for name in ("cpu", "_write_file"):
        patches.apply(storage, name, saved_storage(getattr(storage, name)))
    run_backward = naming_cuda_types(engine.letting_go(torch.autograd._engine_run_backward))
    patches.apply(torch.autograd, "_engine_run_backward", run_backward)
    push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
    patches.apply(
        torch._C._autograd,
        "_push_saved_tensors_default_hooks",
        lambda pack, unpack: push_hooks(seen_by(mode, pack), seen_by(mode, unpack)),
    )
    patches.apply(torch.export, "export", not_traced(mode, torch.export.export))
    profile = torch.autograd.profiler.profile
    patches.apply(profile, "__init__", host_only(profile.__init__))
    patches.apply(torch.autograd, "_supported_activities", lambda: {torch.profiler.ProfilerActivity.CPU})


def seen_by(mode: FunctionMode, hook):
    """A saved-tensor hook with the mode on. PyTorch calls it from inside an operator, where the mode is off, or set
    aside (`dispatcher` runs the branches of CUDA like that)."""

    def call(argument):
        with torch._C._EnableTorchFunction():
            if mode in _get_current_function_mode_stack():  # a GPU around this one has a mode of its own there
                return hook(argument)
            with mode:
                return hook(argument)

    return call


def resized_storage(resize):
    """torch.UntypedStorage.resize_, of which `resize` is PyTorch's: the storage gets a new block, then lets go of its
    old one (aten/src/ATen/native/cuda/Resize.cpp, resize_bytes_cuda)."""

    def resize_(storage, size):
        place = residence.find(storage)
        if place is not None and place.on_gpu:
            try:
                residence.resize(place, size)
            except OutOfMemory as error:
                raise torch.OutOfMemoryError(str(error)) from None
        return resize(storage, size)

    return resize_


def storage_address(address):
    """torch.UntypedStorage.data_ptr, of which `address` is PyTorch's: where the block begins, and 0 on the host."""

    def data_ptr(storage):
        place = residence.find(storage)
        if place is None or place.block is None:
            return address(storage)
        return place.address

    return data_ptr


def _bytes_on_gpu(mode: FunctionMode, storage, non_blocking: bool) -> torch.UntypedStorage:
    """A copy of a storage of the host, as torch.load(map_location="cuda") makes it: a block of its bytes."""
    with torch._C.DisableTorchFunction():
        source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return host_copies.copied(mode.dispatch, source, None, None, False, non_blocking).untyped_storage()


def storage_to(mode: FunctionMode, move):
    """torch.UntypedStorage.to, of which `move` is PyTorch's."""

    @wraps(move)
    def to(storage, *, device, non_blocking=False):
        place = residence.find(storage)
        if not means_gpu(device) or (place is None and storage.device.type == "meta"):
            return move(storage, device=device, non_blocking=non_blocking)
        if place is not None and place.on_gpu:
            return storage
        return _bytes_on_gpu(mode, storage, non_blocking)

    return to


def storage_cuda(mode: FunctionMode, move):
    """torch.UntypedStorage.cuda, of which `move` is PyTorch's."""

    @wraps(move)
    def cuda(storage, device=None, non_blocking=False):
        return storage.to(device=CUDA if device is None else torch.device("cuda", device), non_blocking=non_blocking)

    return cuda


def saved_storage(save):
    """How torch.save and pickle get at the bytes of a storage; `save` is PyTorch's."""

    @wraps(save)
    def saved(storage, *args, **kwargs):
        if residence.find(storage) is not None:
            raise NoValueError(
                f"torch.save and pickle write values, and the {storage.nbytes()} B of a simulated tensor have none: "
                "the simulated GPU computes memory, not values. Save what was made on the CPU, or use a real GPU."
            )
        return save(storage, *args, **kwargs)

    return saved


def not_traced(mode: FunctionMode, export):
    """torch.export.export, of which `export` is PyTorch's. Its modes and the simulated GPU's do not go together."""

    @wraps(export)
    def call(*args, **kwargs):
        if mode in _get_current_function_mode_stack():
            raise NotModelledError("torch.export is not modelled by the simulated GPU: export the model on the CPU")
        return export(*args, **kwargs)

    return call


def host_only(init):
    """torch.autograd.profiler.profile.__init__, of which `init` is PyTorch's; torch.profiler.profile makes one of
    these. There are no kernels that CUPTI could tell of."""

    @wraps(init)
    def __init__(profile, *args, **kwargs):
        init(profile, *args, **kwargs)
        if profile.enabled and profile.use_device == "cuda":
            raise NotModelledError(
                "torch.profiler with ProfilerActivity.CUDA is not modelled by the simulated GPU. Profile the host "
                "(activities=[ProfilerActivity.CPU]); torch.cuda.memory._record_memory_history() records memory, and "
                "labkit.stopwatch() reads the simulated clock."
            )

    return __init__


def record_stream(tensor, stream) -> None:
    """Tensor.record_stream: the block is not reused before `stream` has done its work. PyTorch's own looks at the
    stream's type before a function mode is asked, so this one takes its place as an attribute of torch.Tensor."""
    place = residence.of(tensor)
    if place is not None and place.block is not None:
        place.machine.allocator.record_stream(place.block, stream.stream_id)


def pin_memory(tensor, device=None):
    """Tensor.pin_memory: a copy in memory that is not pinned, but noted as if it were; simulated ones are noted
    themselves. An attribute of torch.Tensor too, since DataLoader calls it in a thread where no mode is on."""
    if on_gpu(tensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    if residence.is_pinned(tensor.untyped_storage()):
        return tensor
    made = tensor if residence.of(tensor) is not None else tensor.clone()
    residence.pin(made.untyped_storage())
    return made
