"""An overlay over the file system for one run: what was there before stays as it is, and the program sees its changes.

The terms are those of Linux' overlayfs. The lower layer is the file system, the upper layer is a scratch folder, and a
whiteout hides a file of the lower layer that the program has removed. Three rules decide where a file is written:

- A file, link or folder that existed before the run is protected. What the program writes to it goes to the upper
  layer, what the program removes gets a whiteout, and what the program renames keeps its place under another name.
- A new file that holds simulated tensors goes to the upper layer, because their bytes do not exist.
- Every other new name is created where the program wants it, so that programs which are not Python find it there.

The state is a journal in the scratch folder, to which every process of the run appends. Paths in it are logical: as the
program sees them, absolute, and with every symbolic link but the last name resolved in the overlay. A path is physical
where the bytes are: a path of the file system itself, or one in the upper layer.
"""

import contextlib
import errno
import functools
import json
import os
import shutil
import stat
import threading
from pathlib import Path

from simgpu.report.files import CHANGED, DELETED, FOLDER, MAY_HOLD, REMOVED, TENSORS, File

JOURNAL = "journal.jsonl"
MAGIC = b"written on a simulated GPU: tensors without values are left out\n"
"""The beginning of files that `tensors.py` writes."""
_SPECIAL = tuple(os.sep + name + os.sep for name in ("dev", "proc", "sys"))
_SHARED = os.path.join(os.sep, "dev", "shm") + os.sep
_SEARCHED = 2**26  # bytes at the beginning of a file
_LINKS = 40  # as many symbolic links as Linux follows

_local = threading.local()
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.RLock()))


@contextlib.contextmanager
def quiet():
    """Inside, this thread's file operations are the real ones: those of the simulator itself."""
    before = getattr(_local, "quiet", False)
    _local.quiet = True
    try:
        yield
    finally:
        _local.quiet = before


def is_quiet() -> bool:
    """Whether this thread is inside `quiet`."""
    return getattr(_local, "quiet", False)


def _alone(method):
    """A method that runs with the real file operations, one thread at a time, on the newest state."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        before = is_quiet()
        with _lock:
            _local.quiet = True  # as `quiet` does, in a third of the time
            try:
                self._sync()
                return method(self, *args, **kwargs)
            finally:
                _local.quiet = before

    return call


def _beneath(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_folder(path: str | None) -> bool:
    return path is not None and os.path.isdir(path) and not os.path.islink(path)


def _clear(path: str) -> None:
    if _is_folder(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


class Overlay:
    """The overlay whose upper layer is `folder`. A second one of that folder, in another process, shares its state."""

    def __init__(self, folder: str | Path):
        with quiet():
            self.folder = os.path.realpath(folder)
            os.makedirs(self.folder, exist_ok=True)
            journal = os.path.join(self.folder, JOURNAL)
            self._journal = os.open(journal, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)
            self._read = 0  # bytes of the journal that were read
            self._left_alone: set[str] = set()
            self.here = ""
            self.escaped = False  # whether the program has bytes or arrays that came from simulated tensors
            self.arrays = False  # whether it has arrays or tensors of the host, in which zeros took the place of values
            self._at: dict[str, str | None] = {}  # by logical path, another physical one; None is a whiteout
            self._names: dict[str, set[str]] = {}  # by logical folder, the names of it in `_at`
            self._made: set[str] = set()  # what the run created in the lower layer
            self._links: set[str] = set()  # those of `_made` that are symbolic links
            self._tensors: dict[str, tuple[int, int]] = {}  # files with simulated tensors: times written, their bytes
            self._deleted: dict[str, tuple[int, int]] = {}  # those that the program has removed again
            self._suspects: set[str] = set()  # files that may hold them
            self._folders: dict[str, int] = {}  # new folders that went to the upper layer, with their other files
            self._buffers = (0, 0)  # pieces and bytes that were written to memory
            self._resolved: dict[str, str] = {}  # logical folders by how they were asked for
            self._open: dict[int, str] = {}  # by file descriptor, what was opened for writing bytes
            self._sync()
            if not self.here:
                self._tell(("here", os.getcwd()))

    def leave_alone(self, folder: str) -> None:
        """Takes a folder out of the overlay, such as a cache of compiled code."""
        self._left_alone |= {os.path.join(one, "") for one in (os.path.abspath(folder), os.path.realpath(folder))}

    def leaves_alone(self, *paths) -> bool:
        """Whether one of these is a path in a folder that is not part of the overlay."""
        if not self._left_alone:
            return False
        named = (os.path.abspath(os.fsdecode(one)) for one in paths if isinstance(one, (str, bytes, os.PathLike)))
        return any(os.path.join(one, "").startswith(tuple(self._left_alone)) for one in named)

    def close(self) -> None:
        """Closes the journal."""
        os.close(self._journal)

    # --- the state ------------------------------------------------------------------------------------------

    def _tell(self, *entries) -> None:
        """Appends to the journal, and applies what it holds by then."""
        os.write(self._journal, "".join(json.dumps(one) + "\n" for one in entries).encode())
        self._sync()

    def _sync(self) -> None:
        size = os.fstat(self._journal).st_size
        if size == self._read:
            return
        if hasattr(os, "pread"):
            text = os.pread(self._journal, size - self._read, self._read)
        else:
            os.lseek(self._journal, self._read, os.SEEK_SET)
            text = os.read(self._journal, size - self._read)
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        for line in text.splitlines():
            kind, *given = json.loads(line)
            getattr(self, f"_apply_{kind}")(*given)

    def _apply_here(self, path):
        self.here = path

    def _apply_at(self, path, where):
        self._at[path] = where
        self._names.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))
        self._resolved.clear()

    def _apply_off(self, path):
        for one in [one for one in self._at if _beneath(one, path)]:
            del self._at[one]
            self._names[os.path.dirname(one)].discard(os.path.basename(one))
        self._resolved.clear()

    def _apply_made(self, path, link=False):
        self._made.add(path)
        if link:
            self._links.add(path)
            self._resolved.clear()

    def _apply_unmade(self, path, folder=True):
        if folder or path in self._links:
            self._resolved.clear()
        for made in (self._made, self._links):
            made -= {one for one in made if _beneath(one, path)} if folder else {path}

    def _apply_tensors(self, path, times, nbytes):
        self._tensors[path] = self._tensors.get(path, (0, 0))[0] + times, nbytes
        self._deleted.pop(path, None)

    def _apply_forget(self, path):
        for one in [one for one in self._tensors if _beneath(one, path)]:
            self._deleted[one] = self._tensors.pop(one)
        self._suspects -= {one for one in self._suspects if _beneath(one, path)}

    def _apply_moved(self, path, to):
        for one in [one for one in self._tensors if _beneath(one, path)]:
            self._apply_tensors(to + one[len(path) :], *self._tensors.pop(one))
        for one in [one for one in self._suspects if _beneath(one, path)]:
            self._suspects.remove(one)
            self._suspects.add(to + one[len(path) :])

    def _apply_suspect(self, path):
        self._suspects.add(path)

    def _apply_folder(self, path, others):
        self._folders[path] = others

    def _apply_buffer(self, nbytes):
        self._buffers = self._buffers[0] + 1, self._buffers[1] + nbytes

    def _apply_escaped(self, arrays):
        self.escaped, self.arrays = True, self.arrays or arrays

    # --- paths ----------------------------------------------------------------------------------------------

    def differs(self) -> bool:
        """Returns whether the program sees what the file system does not show. Quick, because every read asks."""
        if os.fstat(self._journal).st_size != self._read:
            with _lock:
                self._sync()
        return bool(self._at)

    def upper(self, path: str) -> str:
        """Returns the place of a logical path in the upper layer: below `here` if it was below the first folder."""
        if _beneath(path, self.here):
            return os.path.join(self.folder, "here", path[len(self.here) :].lstrip(os.sep)).rstrip(os.sep)
        drive, rest = os.path.splitdrive(path)
        return os.path.join(self.folder, "elsewhere", drive.replace(":", "").strip(os.sep), rest.lstrip(os.sep))

    def _inside(self, path: str) -> bool:
        return _beneath(path, self.folder)

    def _logical(self, path, follow: bool = True, depth: int = 0) -> str:
        folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        if not name:
            return folder
        if folder not in self._resolved:
            self._resolved[folder] = self._logical(folder, True, depth)
        full = os.path.join(self._resolved[folder], name)
        if follow and depth < _LINKS and not full.startswith(_SPECIAL):
            found = self._physical(full)
            if found is not None and os.path.islink(found):
                return self._logical(os.path.join(os.path.dirname(full), os.readlink(found)), True, depth + 1)
        return full

    def _physical(self, path: str) -> str | None:
        """Returns the physical path of a logical one, whether a file exists there or not; None below a whiteout."""
        if not self._at or self._inside(path):
            return path
        up = path
        while up not in self._at:
            above = os.path.dirname(up)
            if above == up:
                return path
            up = above
        where = self._at[up]
        return None if where is None else where + path[len(up) :]

    def _found(self, path: str) -> str | None:
        """The physical path of a logical one, if there is anything."""
        where = self._physical(path)
        return where if where is not None and os.path.lexists(where) else None

    def _is_made(self, path: str) -> bool:
        """Returns whether the run created a logical path in the lower layer, or a folder above it."""
        while path not in self._made:
            above = os.path.dirname(path)
            if above == path:
                return False
            path = above
        return True

    def _ours(self, path: str, where: str) -> bool:
        """Returns whether the run created what a logical path names at a physical one."""
        return self._inside(where) or (path == where and self._is_made(path))

    def _missing(self, logical: str, path, other=None) -> OSError:
        """Returns the error for a logical path that does not exist, which depends on whether its folder does."""
        above = os.path.dirname(logical)
        while self._found(above) is None and os.path.dirname(above) != above:
            above = os.path.dirname(above)
        where = self._physical(above)
        number = errno.ENOENT if where is None or os.path.isdir(where) else errno.ENOTDIR
        return OSError(number, os.strerror(number), path, None, other)

    # --- what the program asks for --------------------------------------------------------------------------

    @_alone
    def reading(self, path, follow: bool = True):
        """The path from which to read what the program asks for: `path` itself where nothing differs. Raises
        FileNotFoundError below a whiteout."""
        logical = self._logical(path, follow)
        where = self._physical(logical)
        if where is None:
            raise self._missing(logical, path)
        same = where == os.path.abspath(os.fsdecode(path)) or where.startswith(_SPECIAL)
        return path if same else where

    @_alone
    def listed(self, path) -> list[str] | None:
        """The names in a folder as the program sees it; None where they are those of the folder itself."""
        logical = self._logical(path)
        where = self._physical(logical)
        names = self._names.get(logical)
        if where is None or not names:
            return None
        found = [one for one in os.listdir(where) if one not in names]
        return found + [one for one in sorted(names) if self._found(os.path.join(logical, one))]

    @_alone
    def writing(self, path, *, keep=False, create=True, exclusive=False, binary=True, tensors=False):
        """The path of the file to open for writing. `keep`: with what it held, as for appending. `create`: if there is
        none; `exclusive`: only then. `binary`: not for text. `tensors`: it gets simulated tensors. Where opening it
        will fail, the path is one for which it fails."""
        logical = self._logical(path)
        if logical.startswith(_SPECIAL) and not logical.startswith(_SHARED):
            return path
        if exclusive and (own := self._found(self._logical(path, False))) is not None:
            return own  # also a link that leads nowhere
        where = self._found(logical)
        if where is None:
            if not create:
                raise self._missing(logical, path)
            where = self._new(logical, apart=tensors)
        elif not stat.S_ISREG(os.stat(where).st_mode) or not os.access(where, os.W_OK):
            return where
        elif not self._ours(logical, where):
            where = self._copied_up(logical, where, keep)
        elif tensors and not self._inside(where):
            os.unlink(where)
            self._tell(("unmade", logical))
            where = self._to_upper(logical)
        if binary and self.escaped and not self._inside(where):
            self._tell(("suspect", logical))
        if not keep and logical in self._tensors:
            self._tell(("tensors", logical, 0, 0))
        return where

    def _new(self, logical: str, apart: bool = False, link: bool = False) -> str:
        """Where to create what there is not: in the lower layer, or with `apart` in the upper one."""
        where = self._physical(logical)
        above = self._physical(os.path.dirname(logical))
        if above is None or not os.path.isdir(above):
            raise self._missing(logical, logical)
        if where is not None and self._inside(where):
            return where
        if where != logical or apart:
            return self._to_upper(logical)
        if link or not self._is_made(logical):
            self._tell(("made", logical, link))
        return logical

    def _to_upper(self, logical: str) -> str:
        where = self.upper(logical)
        os.makedirs(os.path.dirname(where), exist_ok=True)
        _clear(where)
        self._tell(("at", logical, where))
        return where

    def _copied_up(self, logical: str, source: str, keep: bool) -> str:
        """A file of the user's in the upper layer: copied, or empty where its content is not asked for."""
        where = self._to_upper(logical)
        if keep:
            shutil.copyfile(source, where)
        else:
            open(where, "wb").close()
        with contextlib.suppress(OSError):
            shutil.copystat(source, where)
        return where

    @_alone
    def is_protected(self, path) -> bool:
        """Whether there is something that existed before the run, and that the program has not changed in the run."""
        logical = self._logical(path)
        where = self._found(logical)
        return where is not None and not self._ours(logical, where)

    @_alone
    def creating(self, path, link: bool = False) -> str:
        """The path at which to create a folder or a link; one that is there if the program sees one."""
        logical = self._logical(path, False)
        return self._found(logical) or self._new(logical, link=link)

    @_alone
    def changing(self, path, follow: bool = True) -> str | None:
        """The path whose mode, times or owner to set; None for a folder or link of the user's, which keeps its own."""
        logical = self._logical(path, follow)
        if logical.startswith(_SPECIAL):
            return path
        where = self._found(logical)
        if where is None:
            raise self._missing(logical, path)
        if self._ours(logical, where):
            return where
        if os.path.islink(where) or not os.path.isfile(where):
            return None
        return self._copied_up(logical, where, keep=True)

    @_alone
    def remove(self, path) -> None:
        """As os.remove."""
        logical = self._logical(path, False)
        where = self._found(logical)
        if where is None:
            raise self._missing(logical, path)
        if _is_folder(where):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._discard(logical, where)

    @_alone
    def rmdir(self, path) -> None:
        """As os.rmdir."""
        logical = self._logical(path, False)
        where = self._found(logical)
        if where is None:
            raise self._missing(logical, path)
        if not _is_folder(where):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if self._held(logical, where):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._discard(logical, where)

    def _held(self, logical: str, where: str) -> list[str]:
        names = self.listed(logical)
        return os.listdir(where) if names is None else names

    @_alone
    def remove_tree(self, path) -> bool:
        """As shutil.rmtree of a folder; False, and nothing done, where there is none."""
        logical = self._logical(path, False)
        where = self._found(logical)
        if where is None or not _is_folder(where):
            return False
        self._discard(logical, where)
        return True

    def _discard(self, logical: str, where: str) -> None:
        """Removes what the run created at and below a path, and hides what is the user's."""
        for one, other in list(self._at.items()):
            if _beneath(one, logical) and other is not None and self._inside(other):
                _clear(other)
        folder = _is_folder(where)
        if self._ours(logical, where):
            _clear(where)
        elif folder:
            for one in [one for one in self._made if _beneath(one, logical)]:
                _clear(one)
        entries: list[tuple] = []
        if folder or logical in self._tensors or logical in self._suspects:
            entries.append(("forget", logical))
        if folder or logical in self._at:
            entries.append(("off", logical))
        if folder or logical in self._made:
            entries.append(("unmade", logical, folder))
        if entries:
            self._tell(*entries)
        self._hide(logical)

    def _hide(self, logical: str) -> None:
        if self._found(logical):
            self._tell(("at", logical, None))

    @_alone
    def rename(self, path, to) -> None:
        """As os.replace."""
        logical, target = self._logical(path, False), self._logical(to, False)
        where, there = self._found(logical), self._found(target)
        if where is None and not self._is_folder_of(logical):
            raise self._missing(logical, path, to)
        if not self._is_folder_of(target):
            raise self._missing(target, path, to)
        if where is None:  # the system looks for both folders before it looks for the file
            raise self._missing(logical, path, to)
        if logical == target or (there is not None and os.path.samestat(os.lstat(where), os.lstat(there))):
            return
        if _beneath(target, logical) or _beneath(logical, target):
            number = errno.EINVAL if _beneath(target, logical) else errno.ENOTEMPTY
            raise OSError(number, os.strerror(number), path, None, to)
        if there is not None:
            self._refuse_to_replace(where, there, target, path, to)
            self._discard(target, there)
        self._move(logical, where, target)
        self._hide(logical)

    def _is_folder_of(self, logical: str) -> bool:
        """Returns whether what a path is in exists, and is a folder."""
        above = self._physical(os.path.dirname(logical))
        return above is not None and os.path.isdir(above)

    def _refuse_to_replace(self, where: str, there: str, target: str, path, to) -> None:
        number = 0
        if _is_folder(there):
            number = errno.EISDIR if not _is_folder(where) else errno.ENOTEMPTY if self._held(target, there) else 0
        elif _is_folder(where):
            number = errno.ENOTDIR
        if number:
            raise OSError(number, os.strerror(number), path, None, to)

    def _move(self, logical: str, where: str, target: str) -> None:
        below = {one: other for one, other in self._at.items() if _beneath(one, logical) and one != logical}
        entries: list[tuple] = [("off", logical), ("unmade", logical), ("moved", logical, target)]
        if not self._ours(logical, where):  # of the user's: it stays, under another name
            moved = where
        elif not self._inside(where) and self._physical(target) == target:
            moved = target
            os.rename(where, moved)
            if not self._is_made(target):
                entries.append(("made", target, os.path.islink(moved)))
        else:
            moved = self.upper(target)
            os.makedirs(os.path.dirname(moved), exist_ok=True)
            _clear(moved)
            shutil.move(where, moved)
        above = self._physical(os.path.dirname(target))
        if moved != target or above != os.path.dirname(target):
            entries.append(("at", target, moved))
        elif target in self._at:  # a user's file is back under its own name
            entries.append(("off", target))
        for one, other in below.items():
            renamed = target + one[len(logical) :]
            if other is not None and _beneath(other, where) and moved != where:
                other = moved + other[len(where) :]
            elif other is not None and self._inside(other):
                os.makedirs(os.path.dirname(self.upper(renamed)), exist_ok=True)
                os.rename(other, self.upper(renamed))
                other = self.upper(renamed)
            entries.append(("at", renamed, other))
        self._tell(*entries)

    @_alone
    def link(self, path, to) -> None:
        """As os.link. A link to a file of the user's stays protected as that file is."""
        logical, target = self._logical(path, False), self._logical(to, False)
        where = self._found(logical)
        if where is None:
            raise self._missing(logical, path, to)
        if self._found(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path, None, to)
        if self._inside(where):
            os.link(where, self._new(target, apart=True))
        elif self._physical(target) == target:
            ours = self._ours(logical, where)
            os.link(where, target)
            if ours and not self._is_made(target):
                self._tell(("made", target))
        else:
            self._tell(("at", target, where))
        if logical in self._tensors:
            self._tell(("tensors", target, *self._tensors[logical]))
        if logical in self._suspects:
            self._tell(("suspect", target))

    # --- tensors --------------------------------------------------------------------------------------------

    @_alone
    def holds(self, path) -> tuple[int, int] | None:
        """How often a file with simulated tensors was written, and their bytes; None for another file."""
        return self._tensors.get(self._logical(path))

    @_alone
    def note(self, path, nbytes: int, times: int = 1) -> None:
        """Records that a file was written with `nbytes` of simulated tensors."""
        self._tell(("tensors", self._logical(path), times, nbytes))

    @_alone
    def note_open(self, file, nbytes: int) -> None:
        """Records that `nbytes` of simulated tensors were written to an open file. If it is a buffer in memory, the
        program may write them to any file afterwards."""
        path = self._path_of(file)
        if path is None:
            self._tell(("buffer", nbytes))
            self.escape()
        else:
            before = self._tensors.get(path, (0, 0))[1]  # 0 if the file was opened anew
            self._tell(("tensors", path, int(not before), before + nbytes))

    def _path_of(self, file) -> str | None:
        """The logical path of an open file, or of one that an object writes to, as a wrapper does."""
        held = getattr(file, "__dict__", {})
        for one in (file, *held.values()):
            try:
                path = self._opened(one.fileno())
            except (AttributeError, OSError, TypeError, ValueError):
                continue
            if path is not None:
                return path
        return None

    def _opened(self, descriptor: int) -> str | None:
        """The logical path of a file that is open for writing bytes."""
        path = self._open.get(descriptor)
        where = None if path is None else self._physical(path)
        try:
            same = where is not None and os.path.samestat(os.fstat(descriptor), os.stat(where))
        except OSError:
            same = False
        return path if same else None

    @_alone
    def opened(self, descriptor: int, path) -> None:
        """A file is open for writing bytes."""
        self._open[descriptor] = self._logical(path)

    @_alone
    def escape(self, arrays: bool = False) -> None:
        """The program got bytes or arrays that came from simulated tensors. Files of bytes that it has open for
        writing, and those that it opens from now on, may hold them."""
        if not self.escaped or (arrays and not self.arrays):
            self._tell(("escaped", arrays))
        for path in filter(None, map(self._opened, list(self._open))):
            if path not in self._suspects and path not in self._tensors:
                self._tell(("suspect", path))

    # --- the end --------------------------------------------------------------------------------------------

    @_alone
    def finish(self, mark: bytes) -> tuple[File, ...]:
        """Takes what holds simulated tensors out of the lower layer, and returns what the report says of files.

        A file that may hold some does if `mark` is in it.

        A folder that the run created and that has such a file goes as a whole, because half a checkpoint would make a
        later run on a GPU fail; so does a new link that leads nowhere then.
        """
        for path in self._suspects - self._tensors.keys():
            if _contains(self._found(path), mark):
                self._tell(("tensors", path, 1, 0))
        for folder in sorted({os.path.dirname(one) for one in self._tensors}):
            if self._physical(folder) == folder and self._is_made(folder) and self._found(folder):
                others = sum(len(names) for _, _, names in os.walk(folder))
                self._take(folder)
                if others:
                    self._tell(("folder", folder, others))
        for path in [*self._tensors, *self._suspects]:
            if self._found(path) == path and self._is_made(path):
                self._take(path)
        for path in list(self._links):
            if os.path.islink(path) and not os.path.exists(path):
                self._take(path)
        return tuple(self._rows())

    def _take(self, path: str) -> None:
        _merge(path, self.upper(path))
        self._tell(("off", path), ("unmade", path), ("at", path, self.upper(path)))
        above = os.path.dirname(path)
        while self._physical(above) == above and self._is_made(above) and not os.listdir(above):
            os.rmdir(above)
            self._tell(("unmade", above))
            above = os.path.dirname(above)

    def _rows(self):
        for path, (times, nbytes) in self._tensors.items():
            yield self._row(path, times, nbytes, TENSORS)
        if self._buffers[0]:
            yield File("", *self._buffers, "", False, TENSORS)
        for path, (times, nbytes) in self._deleted.items():
            yield self._row(path, times, nbytes, DELETED)
        for path in sorted(self._suspects - self._tensors.keys()):
            if self._found(path):
                yield self._row(path, 1, 0, MAY_HOLD)
        for path, others in self._folders.items():
            yield self._row(path, others, 0, FOLDER)
        for path in sorted(self._at):
            if path not in self._tensors and path not in self._suspects and self._is_users(path):
                yield self._row(path, 1, 0, CHANGED if self._found(path) else REMOVED)

    def _row(self, path: str, times: int, nbytes: int, what: str) -> File:
        shown = os.path.relpath(path, self.here) if _beneath(path, self.here) else path
        where = self._found(path) or ""
        return File(shown, times, nbytes, where if self._inside(where) else "", self._is_users(path), what)

    def _is_users(self, path: str) -> bool:
        """Returns whether the lower layer has a file at a logical path that the run did not create."""
        return os.path.lexists(path) and not self._is_made(path)


def _contains(path: str | None, mark: bytes) -> bool:
    if path is None or not os.path.isfile(path):
        return False
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return mark in file.read(_SEARCHED)
    return False


def _merge(source: str, target: str) -> None:
    """Moves a file or folder to where parts of it may be already."""
    if _is_folder(source) and _is_folder(target):
        for name in os.listdir(source):
            _merge(os.path.join(source, name), os.path.join(target, name))
        os.rmdir(source)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    _clear(target)
    shutil.move(source, target)
