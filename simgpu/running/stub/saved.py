"""The user's files in a run on the stub engine: what existed is not changed, and checkpoints of zeros are kept apart.

The overlay is that of `simgpu.running.files`. A file that holds tensors of the GPU has zeros for values.
"""

from __future__ import annotations

import os

from simgpu.patches import Patches
from simgpu.running.files import VARIABLE, calls
from simgpu.running.files.overlay import Overlay, quiet


class Saved:
    """The overlay of the run that started this process; without one nothing is done."""

    def __init__(self, caches: list[str]):
        folder = os.environ.get(VARIABLE, "")
        self.overlay = Overlay(folder) if os.path.isdir(folder) else None
        self.patches = Patches()
        if self.overlay is not None:
            for cache in caches:
                self.overlay.leave_alone(cache)
            calls.patch(self.patches, self.overlay)

    def torch_imported(self, torch) -> None:
        """Replaces what writes tensors."""
        if self.overlay is None:
            return
        from simgpu.running.files import native

        native.patch(self.patches)
        torch_save = {
            torch.save: calls.replacing(torch.save, _save),
            torch.jit.save: calls.replacing(torch.jit.save, _save),
        }
        calls.everywhere(self.patches, torch_save)

    def safetensors_imported(self, module) -> None:
        """Replaces safetensors' function that writes a file, once `safetensors.torch` has been imported."""
        if self.overlay is not None:
            self.patches.apply(module, "save_file", calls.replacing(module.save_file, _save))

    def read(self) -> None:
        """The program has read more than a scalar of the GPU: binary files that it writes may hold zeros for values."""
        if self.overlay is not None and not self.overlay.arrays:
            self.overlay.escape(arrays=True)


def _save(overlay: Overlay, real, obj, f, *args, **kwargs):
    """A function that saves an object into a file, which is a path or open: torch.save and its kin."""
    if not isinstance(f, (str, os.PathLike)):
        result = real(obj, f, *args, **kwargs)
        overlay.note_open(f, f.tell() if hasattr(f, "tell") else 0)
        return result
    folder = os.path.dirname(os.fspath(f))
    if folder and not os.path.isdir(folder):
        raise RuntimeError(f"Parent directory {folder} does not exist.")  # caffe2/serialize/inline_container.cc
    where = os.fspath(overlay.writing(f, tensors=True))
    with quiet():
        result = real(obj, where, *args, **kwargs)
        size = os.path.getsize(where)
    overlay.note(f, size)
    return result
