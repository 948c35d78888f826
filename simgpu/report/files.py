"""Records what a run without values did to files, and writes their section of the page."""

from typing import NamedTuple

from simgpu.report.sizes import size

TENSORS, DELETED, MAY_HOLD, FOLDER, CHANGED, REMOVED = (
    "tensors",
    "deleted",
    "may hold values",
    "folder",
    "changed",
    "removed",
)
SHOWN = 12  # of each list


class File(NamedTuple):
    """One file that the program wrote, changed or removed, and that the run kept apart.

    `path`: as the program sees it, relative to the folder in which the run began; "" for what went to memory. `times`:
    how often it was written (of a folder, how many other files it has). `nbytes`: of simulated tensors in it. `where`:
    its place in the scratch folder, "" if it has none. `yours`: a file of that name existed before the run, and is
    unchanged. `what`: TENSORS; DELETED, if the program removed such a file again; MAY_HOLD, if the program wrote bytes
    to it after it got arrays or bytes of simulated tensors; FOLDER, a new one that went along with such a file;
    CHANGED or REMOVED, a file of the user's.
    """

    path: str
    times: int
    nbytes: int
    where: str = ""
    yours: bool = False
    what: str = TENSORS


def section(files) -> str:
    """The section of the page, "" if there are no such files."""
    rows = [File(*one) for one in files]
    kept = any(one.where for one in rows)
    place = "" if kept else "; removed when the run ended, and --out FOLDER keeps them"
    lists = (
        (f"Files with simulated tensors, whose bytes do not exist{place}", (TENSORS, DELETED), _with_tensors),
        (f"New files that may hold values of simulated tensors{place}", (MAY_HOLD,), _name),
        ("Your files that the program changed or removed: they are as they were", (CHANGED, REMOVED), _of_yours),
    )
    text = []
    for title, kinds, line in lists:
        chosen = [one for one in rows if one.what in kinds]
        if not chosen:
            continue
        text += [title, *(f"  {line(one)}" for one in chosen[:SHOWN])]
        if len(chosen) > SHOWN:
            text.append(f"  and {len(chosen) - SHOWN} more")
        if TENSORS in kinds:
            text += [f"  {_folder(one)}" for one in rows if one.what == FOLDER][:SHOWN]
    return "\n".join(text)


def _with_tensors(one: File) -> str:
    text = f"{one.path or 'buffers'}: {size(one.nbytes) if one.nbytes else 'bytes'} of tensors"
    if one.times > 1:
        text += f", {'written' if one.path else 'in'} {one.times} {'times' if one.path else 'pieces'}"
    if one.what == DELETED:
        text += ", removed by the program"
    return text + _yours(one) + _where(one)


def _yours(one: File) -> str:
    return "; your file of that name is as it was" if one.yours else ""


def _name(one: File) -> str:
    return one.path + _yours(one) + _where(one)


def _where(one: File) -> str:
    return f" → {one.where}" if one.where else ""


def _folder(one: File) -> str:
    return f"{one.path}: the whole new folder, with {one.times} other file{'s' * (one.times != 1)}{_where(one)}"


def _of_yours(one: File) -> str:
    return f"{one.path}: {one.what} in the run only{_where(one)}"
