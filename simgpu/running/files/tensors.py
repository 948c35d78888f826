"""Files of tensors in a run without values: written with everything but the bytes, which do not exist.

torch.save writes a small file of the simulator's, which torch.load reads back during the run, into tensors without
values. A safetensors file is a valid one of the full length, with a hole in the place of the bytes. Both go to the
upper layer of the overlay. A file in which every tensor is PyTorch's own is written as without a simulated GPU.
"""

import io
import json
import os
import pickle
from functools import wraps
from typing import Any

import torch
import torch._utils
import torch._weights_only_unpickler
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.device.machine import Machine
from simgpu.patches import Patches
from simgpu.running.files.calls import everywhere, replacing
from simgpu.running.files.overlay import MAGIC, Overlay, quiet
from simgpu.storage import storage_map, values
from simgpu.storage.host_memory import Buffer


def patch(patches: Patches, machine: Machine) -> None:
    """Replaces torch.save, torch.load, their kin of torch.jit, and safetensors' functions, under every name."""
    replacements: dict = {
        torch.save: _save,
        torch.load: _load(machine),
        torch.jit.save: _jit_save,
        torch.jit.load: _jit_load,
    }
    try:
        import safetensors.torch as theirs
    except ImportError:
        pass
    else:
        replacements |= {theirs.save_file: _save_file, theirs.save: _save_bytes}
    everywhere(patches, {real: replacing(real, do) for real, do in replacements.items()})
    patches.apply(torch._utils, "_rebuild_tensor", _rebuilt(torch._utils._rebuild_tensor))
    scripted: Any = torch.jit.RecursiveScriptModule  # what torch.jit.script and torch.jit.trace give
    patches.apply(scripted, "save", replacing(scripted.save, _script_save))


def _missing(storage) -> bool:
    """Returns whether the bytes of a storage do not exist."""
    place = storage_map.find(storage)
    return place is not None and (place.values is None or place.values.bytes() is None)


def _simulated(storage) -> bool:
    """Whether PyTorch's own torch.save would find no bytes in a storage: a simulated one, also where its values are
    known as expressions."""
    place = storage_map.find(storage)
    return place is not None and type(place.values) is not Buffer


def _bytes_of(storage) -> bytes:
    """The bytes of a storage, on the host or known on the GPU."""
    place = storage_map.find(storage)
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        if place is not None:
            return place.values.bytes().numpy().tobytes()
        return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


class _Pickler(pickle.Pickler):
    """Pickles what is saved, and keeps its storages apart, as torch.save does."""

    def __init__(self, file):
        super().__init__(file, protocol=2)
        self.storages: dict[str, torch.UntypedStorage] = {}
        self._keys: dict[int, str] = {}

    def persistent_id(self, obj):
        if not (isinstance(obj, torch.storage.TypedStorage) or torch.is_storage(obj)):
            return None
        storage = obj._untyped_storage if isinstance(obj, torch.storage.TypedStorage) else obj
        dtype = obj.dtype if isinstance(obj, torch.storage.TypedStorage) else torch.uint8
        key = self._keys.setdefault(id(storage), str(len(self._keys)))
        self.storages[key] = storage
        location = str(storage.device) if storage_map.find(storage) is not None else "cpu"
        return "storage", str(dtype).removeprefix("torch."), key, location


class _Unpickler(pickle.Unpickler):
    """Has an attribute `persistent_load`, which Python 3.13.0's own refuses."""


def _save(overlay: Overlay, real, obj, f, *args, **kwargs):
    content = io.BytesIO()
    pickler = _Pickler(content)
    try:
        pickler.dump(obj)
    except Exception:
        return real(obj, f, *args, **kwargs)  # whose error it then is
    storages = pickler.storages.values()
    if not any(map(_simulated, storages)):
        if not _is_path(f):
            return real(obj, f, *args, **kwargs)
        where = _place(overlay, f, binary=overlay.arrays or MAGIC in content.getvalue())
        with quiet():
            return real(obj, where, *args, **kwargs)
    kept = {key: (one.nbytes(), None if _missing(one) else _bytes_of(one)) for key, one in pickler.storages.items()}
    text = MAGIC + pickle.dumps((content.getvalue(), kept))
    _write(overlay, f, text, sum(one.nbytes() for one in storages if _simulated(one)))


def _is_path(f) -> bool:
    return isinstance(f, (str, os.PathLike))


def _place(overlay: Overlay, f, **how) -> str:
    """Where to write a file."""
    folder = os.path.dirname(os.fspath(f))
    if folder and not os.path.isdir(folder):
        raise RuntimeError(f"Parent directory {folder} does not exist.")  # caffe2/serialize/inline_container.cc
    return os.fspath(overlay.writing(f, **how))


def _write(overlay: Overlay, f, text: bytes, nbytes: int, length: int | None = None) -> None:
    """Writes a file, or into an open one, of which `nbytes` are simulated tensors. `length`: of the file, with a hole
    at its end."""
    if not _is_path(f):
        f.write(text)
        overlay.note_open(f, nbytes)
        return
    where = _place(overlay, f, tensors=True)
    with quiet(), open(where, "wb") as file:
        file.write(text)
        if length is not None:
            file.truncate(length)  # a hole: it takes no room on most file systems
    overlay.note(f, nbytes)


def _load(machine: Machine):
    def load(overlay: Overlay, real, f, map_location=None, pickle_module=None, *, weights_only=None, **kwargs):
        if _is_path(f):
            f = overlay.reading(f)
        with quiet():  # what it reads does not reach the program as bytes
            text = _ours(f)
        if text is None:
            return real(f, map_location, pickle_module, weights_only=weights_only, **kwargs)
        content, kept = pickle.loads(text)
        restore = torch.serialization._get_restore_location(map_location)
        storages = {}

        def persistent_load(identity):
            _, dtype, key, location = identity
            if key not in storages:
                storages[key] = restore(_storage(machine, *kept[key]), location)
            return torch.storage.TypedStorage(wrap_storage=storages[key], dtype=getattr(torch, dtype), _internal=True)

        kinds = torch._weights_only_unpickler.Unpickler if weights_only in (None, True) else _Unpickler
        unpickler: Any = kinds(io.BytesIO(content))
        unpickler.persistent_load = persistent_load
        return unpickler.load()

    return load


def _ours(f) -> bytes | None:
    """Returns what `save` wrote behind MAGIC, or None for a file that it did not write."""
    if _is_path(f):
        with open(f, "rb") as file:
            return _ours(file)
    start = f.tell()
    if f.read(len(MAGIC)) == MAGIC:
        return f.read()
    f.seek(start)
    return None


def _storage(machine: Machine, nbytes: int, content: bytes | None) -> torch.UntypedStorage:
    """A storage of the host, with these bytes or without values."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        if content is not None:
            return torch.frombuffer(bytearray(content), dtype=torch.uint8).untyped_storage()
        storage = torch.empty(nbytes, dtype=torch.uint8, device="meta").untyped_storage()
    storage_map.bind_host_storage(storage, machine, nbytes)
    return storage


def _rebuilt(real):
    """torch._utils._rebuild_tensor, of which `real` is PyTorch's: also for a storage of the host without values."""

    @wraps(real)
    def rebuild(storage, storage_offset, size, stride):
        untyped = storage._untyped_storage
        if storage_map.find(untyped) is None or untyped.device.type != "cpu":
            return real(storage, storage_offset, size, stride)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            empty = torch.empty((0,), dtype=storage.dtype, device="meta")
            return empty.set_(untyped, storage_offset, size, stride)

    return rebuild


def _of_module(module) -> int:
    """Bytes of the simulated tensors of a module of TorchScript."""
    held = [*module.parameters(), *module.buffers()]
    return sum(one.nbytes for one in held if storage_map.of(one) is not None)


def _jit_save(overlay: Overlay, real, m, f, *args, **kwargs):
    if _is_path(f):
        return m.save(str(f), *args, **kwargs)
    real(m, f, *args, **kwargs)
    if _of_module(m):
        overlay.note_open(f, _of_module(m))


def _script_save(overlay: Overlay, real, module, f, *args, **kwargs):
    """torch.jit.ScriptModule.save, which opens the file in C++ and gives simulated tensors no bytes there."""
    nbytes = _of_module(module)
    real(module, _place(overlay, f, tensors=bool(nbytes)), *args, **kwargs)
    if nbytes:
        overlay.note(f, nbytes)


def _jit_load(overlay: Overlay, real, f, map_location=None, *args, **kwargs):
    if not _is_path(f):
        return real(f, map_location, *args, **kwargs)
    where = overlay.reading(f)
    if overlay.holds(f) is None:
        return real(where, map_location, *args, **kwargs)
    module = real(where, None, *args, **kwargs)
    device = map_location or "cuda"

    def simulated(tensor):
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor

    with torch.no_grad():
        return module._apply(simulated)


_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def _without_values(tensors) -> bool:
    """Whether one of a dictionary of tensors is simulated and has no values."""
    held = tensors.values() if isinstance(tensors, dict) else ()
    return any(
        isinstance(one, torch.Tensor) and storage_map.of(one) is not None and values.of(one) is None for one in held
    )


def _header(tensors: dict[str, torch.Tensor], metadata) -> tuple[bytes, dict[str, int]]:
    """The header of a safetensors file, and where in the file each tensor begins; under "" where it ends."""
    header: dict = {"__metadata__": dict(metadata)} if metadata else {}
    starts, end = {}, 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        starts[name], end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [starts[name], end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    text = len(text).to_bytes(8, "little") + text
    return text, {name: len(text) + start for name, start in starts.items()} | {"": len(text) + end}


def _of(tensors: dict[str, torch.Tensor]) -> int:
    return sum(one.nbytes for one in tensors.values() if storage_map.of(one) is not None)


def _save_file(overlay: Overlay, real, tensors, filename, metadata=None):
    """safetensors.torch.save_file."""
    if not _without_values(tensors):
        where = overlay.writing(filename, tensors=bool(_of(tensors)) if isinstance(tensors, dict) else False)
        real(tensors, where, metadata)
        if isinstance(tensors, dict) and _of(tensors):
            overlay.note(filename, _of(tensors))
        return
    text, starts = _header(tensors, metadata)
    _write(overlay, filename, text, _of(tensors), starts[""])


def _save_bytes(overlay: Overlay, real, tensors, metadata=None) -> bytes:
    """safetensors.torch.save: zeros for what has no values."""
    if not _without_values(tensors):
        return real(tensors, metadata)
    text, starts = _header(tensors, metadata)
    overlay.note_open(None, _of(tensors))
    return text + bytes(starts[""] - len(text))
