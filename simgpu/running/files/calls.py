"""Python's own file operations, as a program in a run without values calls them: each asks the run's overlay first.

`os.path`, `pathlib`, `glob`, `tempfile`, `zipfile`, `numpy` and the rest of Python call these. Imports do not: they use
the module below `os` (posix, nt), which is left alone, and so they are not slower.
"""

import functools
import inspect
import io
import os
import shutil
import stat
import sys
import types
from collections.abc import Callable

from simgpu.patches import Patches
from simgpu.running.files.overlay import Overlay, is_quiet, quiet

_BELOW = {"posix", "nt", "_io", "_pyio", "_frozen_importlib_external", "importlib._bootstrap_external", "zipimport"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CAPABLE: tuple[set, ...] = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids)

_on: list[Overlay] = []  # that of the run, if there is one
_real: dict[Callable, Callable] = {}  # by replacement, what it replaces


def overlay() -> Overlay | None:
    """The overlay of the run, for a call of the program's; None outside of a run, and for the simulator's own calls."""
    return _on[-1] if _on and not is_quiet() else None


def replacing(real: Callable, replacement: Callable) -> Callable:
    """Returns a function that calls `replacement(overlay, real, *args)`, or `real` itself without an overlay."""

    @functools.wraps(real, updated=())
    def call(*args, **kwargs):
        current = overlay()
        if current is None or current.leaves_alone(*args[:2]):
            return real(*args, **kwargs)
        return replacement(current, real, *args, **kwargs)

    _real[call] = real
    return call


def patch(patches: Patches, current: Overlay) -> None:
    """Puts them into `builtins`, `io`, `os` and `shutil`, and wherever another module has them by name."""
    _on.append(current)
    patches.when_undone(lambda: _leave(current))
    replacements = {real: replacing(real, do) for real, do in _operations().items()}
    everywhere(patches, replacements)
    for known in _CAPABLE:  # shutil asks them what os.utime and the like can do
        known |= {replacements[real] for real in known & replacements.keys()}


def everywhere(patches: Patches, replacements: dict[Callable, Callable]) -> None:
    """Puts replacements into every module that has what they replace."""
    by_id = {id(real): replacement for real, replacement in replacements.items()}
    for name, module in list(sys.modules.items()):
        if name in _BELOW or not isinstance(getattr(module, "__dict__", None), dict):
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in by_id:
                patches.apply(module, attribute, by_id[id(value)])


def _leave(current: Overlay) -> None:
    """Ends it, and gives modules that were imported during the run what they would have found without it."""
    _on.remove(current)
    if _on:
        return
    for known in _CAPABLE:
        known -= _real.keys()
    for module in list(sys.modules.values()):
        for attribute, value in list((getattr(module, "__dict__", None) or {}).items()):
            if type(value) is types.FunctionType and value in _real:
                setattr(module, attribute, _real[value])
    _real.clear()


def _operations() -> dict[Callable, Callable]:
    """The functions that are replaced, with what is called instead."""
    own: dict = {io.open: _open, os.open: _os_open, os.listdir: _listdir, os.scandir: _scandir, os.link: _link}
    own |= {os.mkdir: _mkdir, os.symlink: _symlink, os.remove: _remove, os.unlink: _remove, os.rmdir: _rmdir}
    own |= {os.rename: _rename, os.replace: _rename, os.truncate: _truncate}
    own |= {shutil.rmtree: _rmtree, shutil.copyfile: _copyfile}
    for name in ("stat", "lstat", "access", "readlink", "chdir", "getxattr", "listxattr"):
        if hasattr(os, name):
            own[getattr(os, name)] = functools.partial(_read, follow=name not in ("lstat", "readlink"))
    for name in ("chmod", "lchmod", "chown", "lchown", "utime", "setxattr", "removexattr"):
        if hasattr(os, name):
            own[getattr(os, name)] = functools.partial(_change, follow=not name.startswith("lch"))
    for name in ("exists", "lexists", "isfile", "isdir", "islink"):  # which are C on Windows
        if inspect.isbuiltin(getattr(os.path, name)):
            own[getattr(os.path, name)] = functools.partial(_ask, follow=name not in ("lexists", "islink"))
    return own


def _at(path, dir_fd):
    """A path, which may be relative to an open folder; None where that is not known."""
    if dir_fd is None or os.path.isabs(path):
        return path
    try:
        return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fsdecode(path))
    except OSError:
        return None


def _named_as_asked(real, where, path, *args, **kwargs):
    """What `real` gives for a physical path; an error names the path that the program gave."""
    try:
        return real(where, *args, **kwargs)
    except OSError as error:
        if error.filename == where:
            error.filename = path
        raise


# --- reading --------------------------------------------------------------------------------------------


def _read(overlay, real, path=".", *args, follow=True, dir_fd=None, follow_symlinks=True, **kwargs):
    if not follow_symlinks:
        kwargs["follow_symlinks"] = False
    full = None if isinstance(path, int) or not overlay.differs() else _at(path, dir_fd)
    if full is None:
        if dir_fd is not None:
            kwargs["dir_fd"] = dir_fd
        return real(path, *args, **kwargs)
    return _named_as_asked(real, overlay.reading(full, follow and follow_symlinks), path, *args, **kwargs)


def _ask(overlay, real, path, *, follow=True):
    try:
        return _read(overlay, real, path, follow=follow)
    except OSError:
        return False


def _listdir(overlay, real, path="."):
    if isinstance(path, int) or not overlay.differs():
        return real(path)
    path = "." if path is None else path
    names = overlay.listed(path)
    if names is None:
        return _named_as_asked(real, overlay.reading(path), path)
    return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names


def _scandir(overlay, real, path="."):
    if isinstance(path, int) or not overlay.differs():
        return real(path)
    path = "." if path is None else os.fspath(path)
    if overlay.listed(path) is None and overlay.reading(path) is path:
        return real(path)
    return _Entries(path, os.listdir(path))


class _Entries:
    """What os.scandir gives: an iterator that is a context manager."""

    def __init__(self, folder, names):
        self._entries = iter([_Entry(folder, name) for name in names])

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._entries)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        self._entries = iter(())


class _Entry:
    """An os.DirEntry of a folder in the overlay."""

    def __init__(self, folder, name):
        self.name, self.path = name, os.path.join(folder, name)

    def __fspath__(self):
        return self.path

    def __repr__(self):
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks=True):
        return os.stat(self.path) if follow_symlinks else os.lstat(self.path)

    def inode(self):
        return os.lstat(self.path).st_ino

    def is_symlink(self):
        return os.path.islink(self.path)

    def is_junction(self):
        return False

    def _is(self, kind, follow_symlinks):
        try:
            return kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except FileNotFoundError:
            return False

    def is_dir(self, *, follow_symlinks=True):
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks=True):
        return self._is(stat.S_ISREG, follow_symlinks)


# --- writing --------------------------------------------------------------------------------------------


def _open(overlay, real, file, mode="r", *args, **kwargs):
    opener = args[5] if len(args) > 5 else kwargs.get("opener")
    if isinstance(file, int) or opener is not None or not isinstance(mode, str):
        return real(file, mode, *args, **kwargs)
    if not set(mode) & set("wax+"):
        if not overlay.differs():
            return real(file, mode, *args, **kwargs)
        if "b" in mode and overlay.holds(file):
            overlay.escape()
        where = overlay.reading(file)
    else:
        create, binary = not mode.startswith("r"), "b" in mode
        where = overlay.writing(file, keep="w" not in mode, create=create, exclusive="x" in mode, binary=binary)
    if where is not file:  # an opener, so that the file's name is the one that the program gave

        def opened(_, flags):
            with quiet():
                return _named_as_asked(os.open, where, file, flags, 0o666)

        if len(args) > 5:
            args = (*args[:5], opened)
        else:
            kwargs["opener"] = opened
    result = real(file, mode, *args, **kwargs)
    if set(mode) & set("wax+") and "b" in mode:
        overlay.opened(result.fileno(), file)
    return result


def _os_open(overlay, real, path, flags, mode=0o777, *, dir_fd=None):
    full = None if isinstance(path, int) else _at(path, dir_fd)
    if full is None:
        return real(path, flags, mode, dir_fd=dir_fd)
    if not flags & _WRITING:
        where = overlay.reading(full) if overlay.differs() else full
        return _named_as_asked(real, where, path, flags, mode)
    where = overlay.writing(
        full,
        keep=not flags & os.O_TRUNC,
        create=bool(flags & os.O_CREAT),
        exclusive=bool(flags & os.O_EXCL),
        binary=True,
    )
    descriptor = _named_as_asked(real, where, path, flags, mode)
    overlay.opened(descriptor, full)
    return descriptor


def _mkdir(overlay, real, path, mode=0o777, *, dir_fd=None):
    full = _at(path, dir_fd)
    if full is None:
        return real(path, mode, dir_fd=dir_fd)
    return _named_as_asked(real, overlay.creating(full), path, mode)


def _symlink(overlay, real, src, dst, target_is_directory=False, *, dir_fd=None):
    full = _at(dst, dir_fd)
    if full is None:
        return real(src, dst, target_is_directory, dir_fd=dir_fd)
    return real(src, overlay.creating(full, link=True), target_is_directory)


def _link(overlay, real, src, dst, *, src_dir_fd=None, dst_dir_fd=None, **kwargs):
    return overlay.link(_at(src, src_dir_fd), _at(dst, dst_dir_fd))


def _remove(overlay, real, path, *, dir_fd=None):
    return overlay.remove(_at(path, dir_fd))


def _rmdir(overlay, real, path, *, dir_fd=None):
    return overlay.rmdir(_at(path, dir_fd))


def _rename(overlay, real, src, dst, *, src_dir_fd=None, dst_dir_fd=None):
    return overlay.rename(_at(src, src_dir_fd), _at(dst, dst_dir_fd))


def _truncate(overlay, real, path, length):
    if isinstance(path, int):
        return real(path, length)
    return _named_as_asked(real, overlay.writing(path, keep=True, create=False), path, length)


def _change(overlay, real, path, *args, follow=True, dir_fd=None, follow_symlinks=True, **kwargs):
    full = None if isinstance(path, int) else _at(path, dir_fd)
    if not follow_symlinks:
        kwargs["follow_symlinks"] = False
    if full is None:
        if dir_fd is not None:
            kwargs["dir_fd"] = dir_fd
        return real(path, *args, **kwargs)
    where = overlay.changing(full, follow and follow_symlinks)
    return None if where is None else _named_as_asked(real, where, path, *args, **kwargs)


def _rmtree(overlay, real, path, *args, **kwargs):
    """Where there is no such folder, shutil.rmtree says so, or keeps quiet, as it is asked."""
    if kwargs.get("dir_fd") is not None:
        path = _at(path, kwargs.pop("dir_fd"))
    if not overlay.remove_tree(path):
        real(path, *args, **kwargs)


def _copyfile(overlay, real, src, dst, *args, **kwargs):
    held = overlay.holds(src)
    if held is not None and os.path.exists(src):
        if os.path.isdir(dst):
            raise IsADirectoryError(f"{dst!r} is a folder")
        if os.path.exists(dst) and os.path.samefile(src, dst):
            raise shutil.SameFileError(f"{src!r} and {dst!r} are the same file")
        where, target = overlay.reading(src), overlay.writing(dst, tensors=True)
        with quiet():
            shutil.copyfile(where, target)
        overlay.note(dst, held[1])
        return dst
    return real(src, dst, *args, **kwargs)
