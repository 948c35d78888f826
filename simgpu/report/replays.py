"""A run's requests, replayed: the smallest capacity at which all are served, and the memory under other settings.

A replay assumes that the program asks for the same whatever the capacity and the settings. It is used only if the
replay at the run's own capacity reserves exactly what the run reserved.
"""

from dataclasses import dataclass

from simgpu.allocator.requests import Replayed, Requests
from simgpu.allocator.settings import AllocatorSettings

SETTINGS = ("expandable_segments:True", "max_split_size_mb:128", "garbage_collection_threshold:0.8")
"""Settings of the allocator that can reduce fragmentation, in the order of PyTorch's documentation."""


@dataclass(frozen=True)
class Attempt:
    """A replay under other settings: their text, the bytes reserved, and whether the failed request was served."""

    settings: str
    reserved: int
    served: bool


class Replays:
    """Replays of one run. `unusable`: why there can be none, "" if there can.

    `reserved`: the most bytes that the run reserved on a GPU of `capacity` bytes, of which the CUDA context has
    `context`.
    """

    def __init__(
        self,
        requests: Requests,
        settings: AllocatorSettings,
        version: tuple[int, ...],
        *,
        context: int,
        capacity: int,
        reserved: int,
    ):
        self._requests, self._version, self._settings = requests, version, settings
        self._context, self._capacity = context, capacity
        self.unusable = requests.unusable
        if not self.unusable and len(requests) and self._at(capacity).reserved != reserved:
            self.unusable = "a replay of the run's requests does not reserve what the run reserved"

    def _at(self, capacity: int, settings: AllocatorSettings | None = None) -> Replayed:
        return self._requests.replay(capacity, self._context, settings or self._settings, self._version)

    def smallest(self, allocated: int, reserved: int) -> int | None:
        """Returns the smallest capacity in bytes at which every request is served, to 2 MiB; None without a replay.

        It lies between the most bytes allocated and the most reserved, each with the context."""
        if self.unusable or not allocated:
            return None
        low, high = allocated + self._context, min(reserved + self._context, self._capacity)
        return self._requests.smallest(low, high, lambda capacity: self._at(capacity).served)

    def under_settings(self) -> list[Attempt]:
        """Returns what the run would reserve under each of SETTINGS at its capacity."""
        attempts = []
        for text in () if self.unusable else SETTINGS:
            found = self._at(self._capacity, self._settings.updated(text))
            attempts.append(Attempt(text, found.reserved, found.served and not found.failures))
        return attempts
