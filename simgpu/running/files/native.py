"""Functions that open files in C, C++ or Rust, where no call of Python's is seen: they get the overlay's path.

A library that is imported during the run gets them when it is imported. Other native code that writes files, and
programs that are not Python, are outside of the overlay.
"""

import contextlib
import functools
import operator
import os
import shutil
import sys
import tempfile
from types import ModuleType

import torch

from simgpu.patches import Patches
from simgpu.running.after_import import AfterImport
from simgpu.running.files import calls
from simgpu.running.files.overlay import Overlay, quiet


def patch(patches: Patches) -> None:
    """Replaces PyTorch's and numpy's functions, and those of LIBRARIES, now or when they are imported."""
    writer, reader = torch._C.PyTorchFileWriter, torch._C.PyTorchFileReader
    patches.apply(torch._C, "PyTorchFileWriter", _opening(writer, _for_writing))
    patches.apply(torch._C, "PyTorchFileReader", _opening(reader, _for_reading))
    real = vars(torch.autograd.profiler.profile)["export_chrome_trace"]
    patches.apply(torch.autograd.profiler.profile, "export_chrome_trace", calls.replacing(real, _method(_for_writing)))
    for name in LIBRARIES.keys() & sys.modules.keys():
        _patch(patches, sys.modules[name])
    finder = AfterImport(dict.fromkeys(LIBRARIES.keys() - sys.modules.keys(), functools.partial(_patch, patches)))
    sys.meta_path.insert(0, finder)  # pyright: ignore[reportArgumentType]
    patches.when_undone(lambda: sys.meta_path.remove(finder))  # pyright: ignore[reportArgumentType]


def _patch(patches: Patches, module: ModuleType) -> None:
    """Puts the replacements of LIBRARIES into a module that has been imported."""
    for owners, name, replacement in LIBRARIES[module.__name__]:
        for owner in map(operator.attrgetter, owners.split()):
            with contextlib.suppress(AttributeError, KeyError, TypeError):  # not there, or cannot be changed
                kind = owner(module)
                patches.apply(kind, name, _in_place_of(vars(kind)[name], replacement))
        if not owners:
            real = getattr(module, name, None)
            if real is not None:
                calls.everywhere(patches, {real: calls.replacing(real, replacement)})


def _in_place_of(real, replacement):
    if isinstance(real, staticmethod):
        return staticmethod(calls.replacing(real.__func__, replacement))
    return calls.replacing(real, replacement)


# --- what takes a path ----------------------------------------------------------------------------------


def _is_path(path) -> bool:
    return isinstance(path, (str, bytes, os.PathLike))


def _for_writing(overlay: Overlay, path):
    return os.fspath(overlay.writing(path)) if _is_path(path) else path


def _for_reading(overlay: Overlay, path):
    return os.fspath(overlay.reading(path)) if _is_path(path) else path


def _function(resolve):
    """Of a function whose first argument is a path."""

    def call(overlay, real, path, *args, **kwargs):
        return real(resolve(overlay, path), *args, **kwargs)

    return call


def _second(resolve):
    """Of a function whose second argument is a path."""

    def call(overlay, real, first, path, *args, **kwargs):
        return real(first, resolve(overlay, path), *args, **kwargs)

    return call


def _method(resolve):
    """Of a method whose first argument is a path."""

    def call(overlay, real, self, path, *args, **kwargs):
        return real(self, resolve(overlay, path), *args, **kwargs)

    return call


def _opening(kind, resolve):
    """A class of PyTorch's whose first argument may be a path."""

    @functools.wraps(kind, updated=())
    class Opening(kind):
        def __init__(self, path, *args, **kwargs):
            current = calls.overlay()
            super().__init__(path if current is None else resolve(current, path), *args, **kwargs)

    return Opening


def _database(overlay: Overlay, real, database, *args, **kwargs):
    """sqlite3.connect. The files that SQLite keeps next to a database go with it."""
    if not _is_path(database) or os.fsdecode(database) in ("", ":memory:") or kwargs.get("uri"):
        return real(database, *args, **kwargs)
    where = overlay.writing(database, keep=True, binary=False)
    with quiet():
        for end in ("-wal", "-journal"):
            beside = os.fsdecode(database) + end
            if os.path.exists(beside) and not os.path.exists(os.fsdecode(where) + end):
                shutil.copyfile(beside, os.fsdecode(where) + end)
    return real(where, *args, **kwargs)


def _hdf5(overlay: Overlay, real, self, name, mode="r", *args, **kwargs):
    """h5py.File(name, mode)."""
    if _is_path(name) and mode == "r":
        name = overlay.reading(name)
    elif _is_path(name):
        exclusive = mode in ("w-", "x")
        name = overlay.writing(name, keep=mode != "w", create=mode != "r+", exclusive=exclusive)
    return real(self, name, mode, *args, **kwargs)


def _memory_map(overlay: Overlay, real, kind, filename, *args, **kwargs):
    """numpy.memmap(filename, dtype, mode): a file of the user's that is opened for reading and writing is mapped
    copy-on-write, because it may be too large to copy."""
    mode = args[1] if len(args) > 1 else kwargs.get("mode", "r+")
    if mode in ("r+", "readwrite") and _is_path(filename) and overlay.is_protected(filename):
        if len(args) > 1:
            args = (args[0], "c", *args[2:])
        else:
            kwargs["mode"] = "c"
    return real(kind, filename, *args, **kwargs)


def _vocabulary(overlay: Overlay, real, self, folder, *args, **kwargs):
    """tokenizers.models.Model.save(folder, prefix), which names its files itself."""
    with tempfile.TemporaryDirectory() as apart:
        made = real(self, apart, *args, **kwargs)
        files = [os.path.join(folder, os.path.basename(one)) for one in made]
        for source, target in zip(made, files, strict=True):
            shutil.copyfile(source, target)
    return files


_MODELS = "BPE Unigram WordLevel WordPiece Model"
LIBRARIES: dict[str, list] = {
    "sqlite3": [("", "connect", _database)],
    "h5py": [("File", "__init__", _hdf5)],
    "numpy": [("memmap", "__new__", _memory_map)],
    "tokenizers": [
        ("Tokenizer", "save", _method(_for_writing)),
        (" ".join(f"models.{one}" for one in _MODELS.split()), "save", _vocabulary),
    ],
    "safetensors": [("", "serialize_file", _second(_for_writing)), ("", "safe_open", _function(_for_reading))],
    "cv2": [("", "imwrite", _function(_for_writing)), ("", "imread", _function(_for_reading))],
    "torchvision.io.image": [("", "write_file", _function(_for_writing)), ("", "read_file", _function(_for_reading))],
    "pyarrow": [("", "memory_map", _function(_for_reading))],
}
"""By module: the classes that have it, or none for the module itself, its name, and what is called instead."""
