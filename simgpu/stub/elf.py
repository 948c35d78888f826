"""Reads shared objects (ELF, 64 bit, little endian): the libraries that they need, and the symbols that they ask for.

The format is System V's, chapters 4 and 5, with GNU's symbol versions (Linux Standard Base, "Symbol Versioning").
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_STRINGS, _DYNAMIC, _SYMBOLS, _NEEDED_VERSIONS, _VERSIONS = 3, 6, 11, 0x6FFFFFFE, 0x6FFFFFFF  # kinds of sections
_NEEDED = 1  # tag of a library's name in the dynamic section
_UNDEFINED = 0  # the section of a symbol that another library defines


@dataclass(frozen=True)
class Symbol:
    """A symbol by name. `library` is the soname that its version belongs to, "" where it has no version."""

    name: str
    library: str


@dataclass(frozen=True)
class SharedObject:
    """What one file says of itself: sonames that it `needs`, symbols that it takes (`undefined`) and `defined` ones."""

    needs: tuple[str, ...]
    undefined: tuple[Symbol, ...]
    defined: tuple[str, ...]


def read(path: Path, symbols: bool = True) -> SharedObject | None:
    """Reads a file; returns None where it is not a shared object for x86-64.

    `symbols=False` reads only the names of the libraries, which takes microseconds. Raises OSError for a file that
    cannot be read.
    """
    with path.open("rb") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(data, symbols)


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def _read(data, symbols: bool) -> SharedObject:
    (table,) = struct.unpack_from("<Q", data, 40)
    entry, count = struct.unpack_from("<HH", data, 58)
    sections = []
    for at in range(count):
        _, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", data, table + at * entry)
        sections.append(_Section(kind, offset, size, link))
    by_kind = {section.kind: section for section in sections}
    dynamic, table_of_symbols = by_kind.get(_DYNAMIC), by_kind.get(_SYMBOLS)
    needs = tuple(_needs(data, dynamic, sections[dynamic.link])) if dynamic else ()
    if not symbols or table_of_symbols is None:
        return SharedObject(needs, (), ())
    strings = sections[table_of_symbols.link]
    names = data[strings.offset : strings.offset + strings.size]
    libraries = _libraries(data, by_kind.get(_NEEDED_VERSIONS), names)
    undefined, defined = [], []
    for number, (name, section) in enumerate(_entries(data, table_of_symbols, names)):
        if section == _UNDEFINED:
            version = _version(data, by_kind.get(_VERSIONS), number)
            undefined.append(Symbol(name, libraries.get(version, "")))
        else:
            defined.append(name)
    return SharedObject(needs, tuple(undefined), tuple(defined))


def _text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode(errors="replace")


def _needs(data, dynamic: _Section, strings: _Section) -> Iterator[str]:
    names = data[strings.offset : strings.offset + strings.size]
    for tag, value in struct.iter_unpack("<QQ", data[dynamic.offset : dynamic.offset + dynamic.size]):
        if tag == _NEEDED:
            yield _text(names, value)


def _entries(data, table: _Section, names: bytes) -> Iterator[tuple[str, int]]:
    for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", data[table.offset : table.offset + table.size]):
        yield _text(names, name), section


def _version(data, table: _Section | None, number: int) -> int:
    if table is None:
        return 0
    return struct.unpack_from("<H", data, table.offset + 2 * number)[0] & 0x7FFF


def _libraries(data, table: _Section | None, names: bytes) -> dict[int, str]:
    """The soname that each version number belongs to."""
    found: dict[int, str] = {}
    at = table.offset if table else 0
    while table is not None:
        _, count, file, first, following = struct.unpack_from("<HHIII", data, at)
        version = at + first
        for _ in range(count):
            _, _, number, _, step = struct.unpack_from("<IHHII", data, version)
            found[number & 0x7FFF] = _text(names, file)
            version += step
        if following == 0:
            break
        at += following
    return found
