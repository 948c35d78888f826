"""Settings of the caching allocator: PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF.

`AllocatorSettings.parse` accepts the same texts as PyTorch, and refuses the same ones with the same words, followed by
what was given. Source: `c10/core/AllocatorConfig.cpp`, `c10/cuda/CUDAAllocatorConfig.cpp`; compared with torch 2.13.0
(`tools/oracle/settings_texts.py`). It differs on purpose if the text ends too early: PyTorch stops at an internal
assertion ("please report a bug"), but the error here says what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simgpu.allocator.physical import MIB
from simgpu.allocator.rounding import ROUNDUP_INTERVALS
from simgpu.allocator.settings_text import Parser, signed

ENVIRONMENT_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Read in this order; the first that is set counts, even if it is empty."""

SNAPSHOT_BOOLEANS = (
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "graph_capture_record_stream_reuse",
)
"""Keys without an effect here that a snapshot shows."""


class SettingsError(ValueError):
    """Raised for a text that PyTorch refuses.

    `settings` are the settings after the error, since what precedes it in the text counts.
    """

    def __init__(self, message: str, settings: AllocatorSettings) -> None:
        super().__init__(message)
        self.settings = settings


@dataclass(frozen=True)
class AllocatorSettings:
    """Controls how the allocator behaves; the defaults are PyTorch's. Sizes are in bytes.

    `max_split_size`: blocks of at least this size are not split (None: no limit). `max_non_split_rounding_size`: how
    much larger such a block may be than a request it serves. `garbage_collection_threshold`: share of the allowed
    memory above which old free blocks are returned to the device (0: never). `roundup_power2_divisions`: 16 entries for
    1 MiB, 2 MiB, … 32768 MiB (None: all 0). `expandable_segments`: one growing segment per stream and pool.
    `large_segment_size`: the segment for requests between 1 and 10 MiB. `per_process_memory_fraction`: the share of the
    device that this process may use. `throw_on_cudamalloc_oom`: refuse what would exceed that share without trying.
    `text` is what was parsed, and `ignored` holds the accepted keys without an effect here.
    """

    max_split_size: int | None = None
    max_non_split_rounding_size: int = 20 * MIB
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] | None = None
    expandable_segments: bool = False
    large_segment_size: int = 20 * MIB
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False
    text: str = ""
    ignored: tuple[tuple[str, object], ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Returns the settings that `text` describes, e.g. `"max_split_size_mb:128,expandable_segments:True"`.

        Raises SettingsError with PyTorch's wording for an unknown key or a bad value, and NotImplementedError for
        `backend:cudaMallocAsync`, which is a different allocator and not modelled.
        """
        return cls()._read(text, at_start=True)

    def updated(self, text: str) -> AllocatorSettings:
        """Returns these settings after `torch.cuda.memory._set_allocator_settings(text)`.

        As in PyTorch, three options that `text` does not name return to their defaults (`max_split_size`,
        `garbage_collection_threshold`, `roundup_power2_divisions`), `max_non_split_rounding_size` returns to the large
        segment's size, and the others stay. Raises as `parse`.
        """
        return self._read(text, at_start=False)

    def _read(self, text: str, at_start: bool) -> AllocatorSettings:
        parser = Parser(text, self.large_segment_size, at_start)
        try:
            parser.run()
        except ValueError as error:
            raise SettingsError(str(error), self._after(parser, text)) from None
        return self._after(parser, text)

    def _after(self, parser: Parser, text: str) -> AllocatorSettings:
        """Returns these settings with what a parser has found so far."""
        found = {
            "max_split_size": None,
            "garbage_collection_threshold": 0.0,
            "roundup_power2_divisions": None,
            "max_non_split_rounding_size": parser.found.get("large_segment_size", self.large_segment_size),
            **parser.found,
        }
        if found["roundup_power2_divisions"] is not None:
            found["roundup_power2_divisions"] = tuple(found["roundup_power2_divisions"])
        kept = {**dict(self.ignored), **parser.ignored}
        return replace(self, **found, ignored=tuple(sorted(kept.items())), text=text)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> AllocatorSettings:
        """Returns the settings of a process with these environment variables (usually `os.environ`).

        Raises as `parse`.
        """
        for name in ENVIRONMENT_VARIABLES:
            if name in environment:
                return cls.parse(environment[name])
        return cls()

    def as_snapshot(self, torch_version: tuple[int, ...] = (2, 13)) -> dict:
        """Returns the `allocator_settings` of a memory snapshot, under the names of that torch version."""
        ignored = dict(self.ignored)
        divisions = self.roundup_power2_divisions or (0,) * ROUNDUP_INTERVALS
        snapshot = {
            "PYTORCH_CUDA_ALLOC_CONF": self.text,
            "max_split_size": -1 if self.max_split_size is None else signed(self.max_split_size),
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": ignored.get("pinned_num_register_threads", 1),
        }
        for key in SNAPSHOT_BOOLEANS:
            snapshot[key] = ignored.get(key, False)
        if torch_version >= (2, 13):
            snapshot["max_round_threshold"] = ignored.get("pinned_max_round_threshold_mb", -1)
            snapshot["max_cached_size"] = ignored.get("pinned_max_cached_size_mb", -1)
        snapshot["roundup_power2_divisions"] = {str(1 << i): parts for i, parts in enumerate(divisions)}
        return snapshot
