"""Records what the allocator did: `torch.cuda.memory._record_memory_history`.

Entries are stored as tuples, and become dictionaries with PyTorch's keys only when a snapshot needs them. Source:
`record_trace` in `c10/cuda/CUDACachingAllocator.cpp`, `torch/csrc/cuda/memory_snapshot.cpp`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

STATE, ALLOC, ALL = 1, 2, 3
"""The events for which frames are recorded: living blocks only; also every entry; also frees."""

CONTEXTS = {None: 0, "state": STATE, "alloc": ALLOC, "all": ALL}

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
)

DEFAULT_POOL = (0, 0)
"""Id of the allocator's own pools; private pools have other ids (see `private_pools`)."""


class History:
    """Stores the newest `max_entries` events of one device (at least one).

    `enabled` is "all" for every event, "state" for only the newest one (frames of living blocks are recorded all the
    same), or None for nothing. `context` selects when frames are recorded (see `CONTEXTS`). `frames` returns the
    current Python frames, innermost first, as dictionaries with `filename`, `line`, `name`, and `clock` the time in
    microseconds. `skip_actions` names actions that are not recorded.

    Raises ValueError for values that PyTorch does not know.
    """

    __slots__ = ("_clock", "_context", "_frames", "_skip", "enabled", "entries", "metadata")

    def __init__(self, frames: Callable[[], list] | None, clock: Callable[[], int] | None) -> None:
        self.enabled = False
        self.entries: deque[tuple] = deque(maxlen=1)
        self._context = 0
        self._frames = frames
        self._clock = clock
        self._skip: frozenset[str] = frozenset()
        self.metadata = ""  # set by torch.cuda.memory._set_memory_metadata, for each later event

    def configure(
        self,
        enabled: str | None,
        context: str | None,
        max_entries: int,
        clear_history: bool,
        skip_actions: Iterable[str],
    ) -> None:
        """Starts, changes or (with `enabled=None`) stops the recording."""
        if enabled not in (None, "state", "all"):
            raise ValueError(f"expected enabled to be None, 'state' or 'all', got {enabled!r}")
        if context not in CONTEXTS:
            raise ValueError(f"expected context to be None, 'state', 'alloc' or 'all', got {context!r}")
        if unknown := set(skip_actions) - set(ACTIONS):
            raise ValueError(f"unknown actions {sorted(unknown)}; the actions are {', '.join(ACTIONS)}")
        if max_entries < 0:
            raise ValueError(f"expected max_entries of at least 0, got {max_entries}")
        kept = () if enabled is None or clear_history else self.entries
        self.entries = deque(kept, maxlen=max(1, max_entries) if enabled == "all" else 1)
        self.enabled = enabled is not None
        self._context = CONTEXTS[context] if self.enabled else 0
        self._skip = frozenset(skip_actions)

    def frames(self, level: int) -> list | None:
        """Returns the current frames if the recording includes them for events of this level, else None."""
        if self._context < level or self._frames is None:
            return None
        return self._frames()

    def record(
        self,
        action: str,
        address: int,
        size: int,
        stream: int,
        frames: list | None,
        pool_id: tuple[int, int] = DEFAULT_POOL,
        metadata: str | None = None,
    ) -> None:
        """Records one event. Sizes are in bytes, and `address` is the free memory for "oom".

        `metadata` is the event's own text, if it differs from `self.metadata`.
        """
        if action not in self._skip:
            time = self._clock() if self._clock is not None else 0
            kept = frames if self._context >= ALLOC else None
            self.entries.append(
                (action, address, size, stream, time, kept, pool_id, self.metadata if metadata is None else metadata)
            )

    def as_trace(self, torch_version: tuple[int, ...] = (2, 13)) -> list[dict]:
        """Returns the events, oldest first, as in `device_traces` of a memory snapshot of that torch version."""
        has_pool = torch_version >= (2, 12)
        # a copy, because garbage collection during the loop may free blocks and add entries
        entries = list(self.entries)
        return [_as_dict(has_pool, *entry) for entry in entries]


def _as_dict(
    has_pool: bool,
    action: str,
    address: int,
    size: int,
    stream: int,
    time: int,
    frames: list | None,
    pool_id: tuple[int, int],
    metadata: str,
) -> dict:
    entry: dict = {
        "action": action,
        "device_free" if action == "oom" else "addr": address,
        "size": size,
        "stream": stream,
        "time_us": time,
        "compile_context": "N/A",
        "user_metadata": metadata,
    }
    if has_pool:
        entry["pool_id"] = pool_id
    if frames is not None:  # PyTorch omits the key without frames
        entry["frames"] = list(frames)
    return entry
