"""Files that a script writes of tensors without values: counted, with everything in them but the tensors' bytes.

torch.save writes a small file of ours, which torch.load reads back while the GPU is on, into tensors without values;
safetensors' files are valid ones, of the full length and with holes in the place of bytes. A file in which every tensor
has values is written as ever.
"""

import io
import json
import os
import pickle
import sys
from functools import wraps
from typing import Any

import torch
import torch._utils
import torch._weights_only_unpickler
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.machine import Machine
from simgpu.patches import Patches
from simgpu.stand_ins import StandIns
from simgpu.tensors import residence, values
from simgpu.tensors.buffers import Buffer

MAGIC = b"written on a simulated GPU: tensors without values are left out\n"


def patch(patches: Patches, machine: Machine, stand_ins: StandIns) -> None:
    """Puts them in the place of torch.save, torch.load and safetensors' functions."""
    patches.apply(torch, "save", _save(torch.save, stand_ins))
    patches.apply(torch.serialization, "save", torch.save)
    patches.apply(torch, "load", _load(torch.load, machine))
    patches.apply(torch.serialization, "load", torch.load)
    patches.apply(torch._utils, "_rebuild_tensor", _rebuilt(torch._utils._rebuild_tensor))
    try:
        import safetensors.torch as theirs
    except ImportError:
        return
    real = theirs.save_file
    replacement = _save_file(real, stand_ins)
    for module in list(sys.modules.values()):
        for name in ("save_file", "safe_save_file"):
            if getattr(module, "__dict__", {}).get(name) is real:
                patches.apply(module, name, replacement)


def _missing(storage) -> bool:
    """Whether the bytes of a storage do not exist."""
    place = residence.find(storage)
    return place is not None and (place.values is None or place.values.bytes() is None)


def _simulated(storage) -> bool:
    """Whether PyTorch's own torch.save would find no bytes in a storage: a simulated one, also where its values are
    known as expressions."""
    place = residence.find(storage)
    return place is not None and type(place.values) is not Buffer


def _bytes_of(storage) -> bytes:
    """The bytes of a storage, on the host or known on the GPU."""
    place = residence.find(storage)
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
        location = str(storage.device) if residence.find(storage) is not None else "cpu"
        return "storage", str(dtype).removeprefix("torch."), key, location


class _Unpickler(pickle.Unpickler):
    """Has an attribute `persistent_load`, which Python 3.13.0's own refuses."""


def _save(real, stand_ins: StandIns):
    @wraps(real)
    def save(obj, f, *args, **kwargs):
        content = io.BytesIO()
        pickler = _Pickler(content)
        try:
            pickler.dump(obj)
        except Exception:
            return real(obj, f, *args, **kwargs)  # whose error it then is
        missing = [one for one in pickler.storages.values() if _missing(one)]
        if not any(map(_simulated, pickler.storages.values())):
            return real(obj, f, *args, **kwargs)
        kept = {key: (one.nbytes(), None if _missing(one) else _bytes_of(one)) for key, one in pickler.storages.items()}
        text = MAGIC + pickle.dumps((content.getvalue(), kept))
        if missing:
            named = f if isinstance(f, (str, os.PathLike)) else getattr(f, "name", "")
            name = str(named) if isinstance(named, (str, os.PathLike)) else ""
            stand_ins.note_file(name, sum(one.nbytes() for one in missing))
        if isinstance(f, (str, os.PathLike)):
            with open(f, "wb") as file:
                file.write(text)
        else:
            f.write(text)

    return save


def _load(real, machine: Machine):
    @wraps(real)
    def load(f, map_location=None, pickle_module=None, *, weights_only=None, **kwargs):
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
    """What `save` has written behind MAGIC, or None if it is another file."""
    if isinstance(f, (str, os.PathLike)):
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
    residence.settle_on_host(storage, machine, nbytes)
    return storage


def _rebuilt(real):
    """torch._utils._rebuild_tensor, of which `real` is PyTorch's: also for a storage of the host without values."""

    @wraps(real)
    def rebuild(storage, storage_offset, size, stride):
        untyped = storage._untyped_storage
        if residence.find(untyped) is None or untyped.device.type != "cpu":
            return real(storage, storage_offset, size, stride)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            empty = torch.empty((0,), dtype=storage.dtype, device="meta")
            return empty.set_(untyped, storage_offset, size, stride)

    return rebuild


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


def _save_file(real, stand_ins: StandIns):
    """safetensors.torch.save_file, of which `real` is its own."""

    @wraps(real)
    def save_file(tensors, filename, metadata=None):
        missing = [one for one in tensors.values() if residence.of(one) is not None and values.of(one) is None]
        if not missing:
            return real(tensors, filename, metadata)
        stand_ins.note_file(str(filename), sum(one.nbytes for one in missing))
        header: dict = {"__metadata__": dict(metadata)} if metadata else {}
        end = 0
        for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
            start, end = end, end + tensor.nbytes
            header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(filename, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)  # a hole: it takes no room on most file systems

    return save_file
