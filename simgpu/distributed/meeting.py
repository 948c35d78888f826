"""Exchanges objects and barriers between ranks that run as processes.

They use the store from PyTorch's rendezvous, as the program's own processes do. Tensors' values are not exchanged,
because simulated tensors have none.
"""

import inspect
import pickle
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from simgpu.errors import NoValueError

TIMEOUT = timedelta(minutes=10)
"""Maximum time that a rank waits for another (ProcessGroupNCCL.hpp, kProcessGroupNCCLDefaultTimeout)."""

PAUSE = 0.02
"""Seconds between two checks of the store."""

_sleep = time.sleep


class Meeting:
    """Connects the ranks of a world: `store` is shared by all of them, and `rank` is this process's rank."""

    def __init__(self, store, rank: int) -> None:
        self._store = store
        self.rank = rank
        self._counts: dict[tuple, int] = {}

    def leave(self) -> None:
        """Announces that this rank has ended, so that no other rank waits for it."""
        try:
            self._store.set(f"simgpu/ended/{self.rank}", "")
        except Exception:  # the process that hosted the store has ended
            return

    def barrier(self, ranks: tuple[int, ...]) -> None:
        """Waits until all of these ranks have arrived or ended. Raises RuntimeError after TIMEOUT."""
        key = self._key("barrier", ranks)
        self._store.set(f"{key}/{self.rank}", "")
        for one in ranks:
            self._wait(f"{key}/{one}", one)

    def broadcast(self, ranks: tuple[int, ...], source: int, given: Any) -> Any:
        """Returns what rank `source` gives, or this rank's own object if that cannot be pickled.

        Raises RuntimeError after TIMEOUT, and NoValueError if that rank has ended.
        """
        key = self._key("broadcast", ranks)
        if source == self.rank:
            self._post(key, given)
            return given
        return self._read(key, source, given)

    def all_gather(self, ranks: tuple[int, ...], given: Any) -> list:
        """Returns what each of these ranks gives; otherwise as `broadcast`."""
        key = self._key("all_gather", ranks)
        self._post(f"{key}/{self.rank}", given)
        return [given if one == self.rank else self._read(f"{key}/{one}", one, given) for one in ranks]

    def send(self, way: tuple, given: Any) -> None:
        """Sends an object to the rank that next calls `receive` with this way (`messages.Way`)."""
        self._post(self._key("sent", way), given)

    def receive(self, way: tuple, wait: bool) -> Any:
        """Returns the next object that was sent this way, or None if there is none yet and `wait` is false."""
        count = self._counts.get(("sent", way), 0)
        key = f"simgpu/sent/{way}/{count}"
        if not wait and not self._store.check([key]):
            return None
        self._counts["sent", way] = count + 1
        return self._read(key, way[0][way[1]], None)

    def _key(self, kind: str, what: tuple) -> str:
        """Returns the name of the next exchange of a kind, the same on every rank."""
        count = self._counts.get((kind, what), 0)
        self._counts[kind, what] = count + 1
        return f"simgpu/{kind}/{what}/{count}"

    def _post(self, key: str, given: Any) -> None:
        try:
            content = pickle.dumps(given)
        except Exception:  # for example a simulated tensor, which has no bytes
            content = b""
        self._store.set(key, content)

    def _read(self, key: str, sender: int, otherwise: Any) -> Any:
        if not self._wait(key, sender):
            raise NoValueError(f"rank {self.rank} waits for an object of rank {sender}, which has ended")
        content = self._store.get(key)
        return pickle.loads(content) if content else otherwise

    def _wait(self, key: str, sender: int) -> bool:
        """Waits for a rank's key; returns whether it came before that rank ended."""
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while not self._store.check([key]):
            if self._store.check([f"simgpu/ended/{sender}"]):
                return self._store.check([key])
            if time.monotonic() > deadline:
                raise RuntimeError(f"rank {self.rank} has waited {TIMEOUT} for rank {sender}, which did not come")
            _sleep(PAUSE)
        return True


here: Meeting | None = None
"""This process's meeting, if it is a rank of a world whose ranks actually run."""


def enter(store, rank: int) -> None:
    """Makes this process meet the other ranks at `store`."""
    global here
    here = Meeting(store, rank)


def leave() -> None:
    """Ends this process's membership in its world."""
    global here
    if here is not None:
        here.leave()
    here = None


# --- functions of torch.distributed that exchange objects ---------------------------------------------


def broadcasting(broadcast: Callable) -> Callable:
    """Wraps broadcast_object_list (`broadcast` is the version for a single rank): the list is the source's."""

    def before(here: Meeting, ranks: tuple, given: dict) -> None:
        objects = given["object_list"]
        objects[:] = here.broadcast(ranks, _source(ranks, given, "src", "group_src"), list(objects))

    return _exchanging(broadcast, before)


def scattering(scatter: Callable) -> Callable:
    """Wraps scatter_object_list: the scattered list is the source's."""

    def before(here: Meeting, ranks: tuple, given: dict) -> None:
        name = "scatter_object_input_list"
        given[name] = here.broadcast(ranks, _source(ranks, given, "src", "group_src"), given.get(name))

    return _exchanging(scatter, before)


def gathering(gather: Callable) -> Callable:
    """Wraps gather_object: the destination's list has each rank's object."""

    def after(here: Meeting, ranks: tuple, given: dict) -> None:
        found = here.all_gather(ranks, given["obj"])
        if given.get("object_gather_list") is not None:
            given["object_gather_list"][:] = found

    return _exchanging(gather, after=after)


def all_gathering(gather: Callable) -> Callable:
    """Wraps all_gather_object: the list has each rank's object."""

    def after(here: Meeting, ranks: tuple, given: dict) -> None:
        given["object_list"][:] = here.all_gather(ranks, given["obj"])

    return _exchanging(gather, after=after)


def _exchanging(function: Callable, before: Callable | None = None, after: Callable | None = None) -> Callable:
    """Wraps a single-rank function with an exchange before or after it, if the other ranks actually run."""
    signature = inspect.signature(function)

    @wraps(function)
    def exchanging(*args, **kwargs):
        from torch.distributed import distributed_c10d as c10d

        group = kwargs.get("group", signature.bind_partial(*args, **kwargs).arguments.get("group"))
        if here is None or group is c10d.GroupMember.NON_GROUP_MEMBER:
            return function(*args, **kwargs)
        ranks = tuple(c10d.get_process_group_ranks(group or c10d._get_default_group()))
        if here.rank not in ranks:
            return function(*args, **kwargs)
        given = dict(signature.bind(*args, **kwargs).arguments)
        if before is not None:
            before(here, ranks, given)
        found = function(**given)
        if after is not None:
            after(here, ranks, given)
        return found

    _exchanges.add(exchanging.__code__)  # pyright: ignore[reportAttributeAccessIssue]
    return exchanging


_exchanges: set = set()


def callers_frame():
    """Returns the frame that called the torch.distributed function that calls this one, skipping the exchange."""
    frame = sys._getframe(2)
    while frame.f_code in _exchanges and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _source(ranks: tuple[int, ...], given: dict, of_world: str, of_group: str) -> int:
    """Returns the rank of the world that a call names as the source."""
    if given.get(of_group) is not None:
        return ranks[given[of_group]]
    return given.get(of_world) or 0
