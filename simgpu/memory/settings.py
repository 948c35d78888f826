"""Settings of the caching allocator: PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF.

`AllocatorSettings.parse` reads the same text as PyTorch and refuses it with the same words, followed by what
was given. Source: `c10/core/AllocatorConfig.cpp`, `c10/cuda/CUDAAllocatorConfig.cpp`; compared with torch 2.13.0.
Different on purpose: a negative number is refused, where PyTorch wraps it around to a huge one; and where
PyTorch stops at an internal assertion ("please report a bug") because the text ends too early, the error here
says what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from simgpu.memory.physical import MiB
from simgpu.memory.rounding import MIN_LARGE_ALLOC, ROUNDUP_INTERVALS

ENVIRONMENT_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Read in this order; the first that is set counts, also when it is empty."""

MAX_REGISTER_THREADS = 128

IGNORED_BOOLEANS = (
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_use_background_threads",
    "pinned_free_catch_all",
    "graph_capture_record_stream_reuse",
)
"""Keys that are read and checked but change nothing here: they concern locks, pinned host memory, graphs."""

SNAPSHOT_BOOLEANS = (
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "graph_capture_record_stream_reuse",
)
"""Those of them that a snapshot shows."""

IGNORED_SIZES = ("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb")
"""Sizes of the pinned host cache, in MiB; read, checked and shown in snapshots."""


@dataclass(frozen=True)
class AllocatorSettings:
    """How the allocator behaves; the defaults are PyTorch's. Sizes in bytes.

    `max_split_size`: blocks of at least this size are not split (None: no limit).
    `max_non_split_rounding_size`: how much larger such a block may be than a request it serves.
    `garbage_collection_threshold`: share of the allowed memory above which old free blocks are given back (0:
    never). `roundup_power2_divisions`: 16 entries for 1 MiB, 2 MiB, … 32768 MiB (None: all 0).
    `expandable_segments`: one growing segment per stream and pool. `large_segment_size`: segment for requests
    between 1 and 10 MiB. `per_process_memory_fraction`: share of the device this process may take.
    `throw_on_cudamalloc_oom`: refuse what would exceed that share without trying.
    `text` is what was parsed; `ignored` holds the accepted keys that change nothing here.
    """

    max_split_size: int | None = None
    max_non_split_rounding_size: int = 20 * MiB
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] | None = None
    expandable_segments: bool = False
    large_segment_size: int = 20 * MiB
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False
    text: str = ""
    ignored: tuple[tuple[str, object], ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """The settings that `text` describes, e.g. `"max_split_size_mb:128,expandable_segments:True"`.

        Raises ValueError with PyTorch's wording for an unknown key or a bad value, and NotImplementedError
        for `backend:cudaMallocAsync`, which is another allocator and not modelled.
        """
        return cls().updated(text)

    def updated(self, text: str) -> AllocatorSettings:
        """These settings after `torch.cuda.memory._set_allocator_settings(text)`.

        As in PyTorch, three options that `text` does not name return to their defaults (`max_split_size`,
        `garbage_collection_threshold`, `roundup_power2_divisions`), `max_non_split_rounding_size` returns to
        the large segment's size, and the others stay. Raises as `parse`.
        """
        found, ignored = _Parser(text, self.large_segment_size).values()
        found = {
            "max_split_size": None,
            "garbage_collection_threshold": 0.0,
            "roundup_power2_divisions": None,
            "max_non_split_rounding_size": found.get("large_segment_size", self.large_segment_size),
            **found,
        }
        kept = {**dict(self.ignored), **ignored}
        return replace(self, **found, ignored=tuple(sorted(kept.items())), text=text or self.text)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> AllocatorSettings:
        """The settings of a process with these environment variables (usually `os.environ`).

        Raises as `parse`.
        """
        for name in ENVIRONMENT_VARIABLES:
            if name in environment:
                return cls.parse(environment[name])
        return cls()

    def as_snapshot(self, torch_version: tuple[int, ...] = (2, 13)) -> dict:
        """The `allocator_settings` of a memory snapshot, under the names of that torch version."""
        ignored = dict(self.ignored)
        divisions = self.roundup_power2_divisions or (0,) * ROUNDUP_INTERVALS
        snapshot = {
            "PYTORCH_CUDA_ALLOC_CONF": self.text,
            "max_split_size": -1 if self.max_split_size is None else self.max_split_size,
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


class _Parser:
    """Reads `key:value,key:value`, value by value, as PyTorch's ConfigTokenizer does."""

    def __init__(self, text: str, large_segment_size: int) -> None:
        # Blanks are dropped wherever they stand, also inside a number.
        self.tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", text.replace(" ", ""))
        self.position = 0
        self.large_segment_size = large_segment_size

    def values(self) -> tuple[dict, dict]:
        """Fields of AllocatorSettings that the text names, and the keys that change nothing here."""
        found: dict = {}
        ignored: dict = {}
        # The smallest allowed split size depends on large_segment_size, wherever that stands in the text.
        large = self._large_segment_size()
        if large is not None:
            found["large_segment_size"] = large
        minimum = self.large_segment_size if large is None else large
        self.position = 0
        while self.position < len(self.tokens):
            key = self._next("a key")
            if key == "max_split_size_mb":
                found["max_split_size"] = self._split_size(key, minimum)
            elif key == "max_non_split_rounding_mb":
                found["max_non_split_rounding_size"] = self._split_size(key, minimum)
            elif key == "garbage_collection_threshold":
                found[key] = self._threshold()
            elif key == "roundup_power2_divisions":
                found[key] = self._divisions()
            elif key in ("expandable_segments", "throw_on_cudamalloc_oom"):
                found[key] = self._boolean(key)
            elif key == "large_segment_size_mb":
                self._integer(key)
            elif key == "per_process_memory_fraction":
                found[key] = self._fraction()
            elif key == "backend":
                self._backend()
            elif key in IGNORED_BOOLEANS:
                ignored[key.replace("hip", "cuda")] = self._boolean(key)
            elif key in IGNORED_SIZES:
                ignored[key] = self._integer(key) * MiB
            elif key == "pinned_num_register_threads":
                ignored[key] = self._register_threads(key)
            elif key == "pinned_reserve_segment_size_mb":
                ignored[key] = self._reserve_segment_size(key)
            else:
                raise ValueError(f"Unrecognized key '{key}' in CUDA allocator config.")
            if self.position < len(self.tokens):
                self._expect(",")
        return found, ignored

    def _next(self, wanted: str) -> str:
        if self.position >= len(self.tokens):
            raise ValueError(f"Allocator config ends where {wanted} was expected: {''.join(self.tokens)!r}")
        token = self.tokens[self.position]
        self.position += 1
        return token

    def _expect(self, wanted: str) -> None:
        token = self._next(f"'{wanted}'")
        if token != wanted:
            raise ValueError(f"Expected '{wanted}' at index {self.position - 1} in ConfigTokenizer but got '{token}'")

    def _value(self, key: str) -> str:
        self._expect(":")
        return self._next(f"a value for {key}")

    def _to_integer(self, token: str) -> int:
        # PyTorch reads the leading digits and drops what follows ("30.5" is 30).
        match = re.match(r"\+?\d+", token)
        if match is None:
            raise ValueError(f"stoull: expected a whole number but got '{token}'")
        return int(match.group())

    def _to_float(self, token: str) -> float:
        match = re.match(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", token)
        if match is None:
            raise ValueError(f"stod: expected a number but got '{token}'")
        return float(match.group())

    def _integer(self, key: str) -> int:
        return self._to_integer(self._value(key))

    def _boolean(self, key: str) -> bool:
        token = self._value(key)
        if token not in ("True", "False"):
            raise ValueError(
                f"Expected 'True' or 'False' at index {self.position - 1} in ConfigTokenizer but got '{token}'"
            )
        return token == "True"

    def _large_segment_size(self) -> int | None:
        size = None
        for index, token in enumerate(self.tokens):
            if token == "large_segment_size_mb":
                self.position = index + 1
                megabytes = self._integer("large_segment_size_mb")
                if megabytes * MiB <= MIN_LARGE_ALLOC:
                    raise ValueError(
                        "CachingAllocator option large_segment_size_mb must be > "
                        f"{MIN_LARGE_ALLOC // MiB} MB, got {megabytes}"
                    )
                size = megabytes * MiB
        return size

    def _split_size(self, key: str, minimum: int) -> int:
        megabytes = self._integer(key)
        if megabytes * MiB < minimum:
            raise ValueError(f"CachingAllocator option {key} too small, must be >= {minimum // MiB}, got {megabytes}")
        return megabytes * MiB

    def _threshold(self) -> float:
        value = self._to_float(self._value("garbage_collection_threshold"))
        if not 0 < value < 1:
            raise ValueError(f"garbage_collect_threshold is invalid, set it in (0.0, 1.0), got {value}")
        return value

    def _fraction(self) -> float:
        value = self._to_float(self._value("per_process_memory_fraction"))
        if not 0 <= value <= 1:
            raise ValueError(f"per_process_memory_fraction is invalid, set it in [0.0, 1.0], got {value}")
        return value

    def _register_threads(self, key: str) -> int:
        threads = self._integer(key)
        if threads.bit_count() != 1:
            raise ValueError(f"Number of register threads has to be power of 2, got {threads}")
        if threads > MAX_REGISTER_THREADS:
            raise ValueError(
                f"Number of register threads should be less than or equal to {MAX_REGISTER_THREADS}, got {threads}"
            )
        return threads

    def _reserve_segment_size(self, key: str) -> int:
        megabytes = self._integer(key)
        if megabytes <= 0:
            raise ValueError(f"Pinned reserve segment size has to be greater than 0, got {megabytes}")
        return megabytes

    def _backend(self) -> None:
        name = self._value("backend")
        if name == "cudaMallocAsync":
            raise NotImplementedError(
                "backend:cudaMallocAsync is not modelled: it is another allocator, inside the CUDA driver. "
                "Use backend:native (the default)."
            )
        if name != "native":
            raise ValueError(f"Unknown allocator backend, options are native and cudaMallocAsync, got '{name}'")

    def _divisions(self) -> tuple[int, ...]:
        key = "roundup_power2_divisions"
        token = self._value(key)
        if token != "[":
            parts = self._to_integer(token)
            if parts.bit_count() != 1:
                raise ValueError(f"For roundups, the divisions has to be power of 2, got {parts}")
            return (parts,) * ROUNDUP_INTERVALS
        table = [0] * ROUNDUP_INTERVALS
        last = 0
        first_key = True
        while (token := self._next("']'")) != "]":
            parts = self._to_integer(self._value(key))
            if parts and parts.bit_count() != 1:
                raise ValueError(
                    f"For roundups, the divisions has to be power of 2 or 0 to disable roundup, got {parts}"
                )
            if token == ">":
                table[last + 1 :] = [parts] * (ROUNDUP_INTERVALS - last - 1)
            else:
                boundary = self._to_integer(token)
                if boundary.bit_count() != 1:
                    raise ValueError(f"For roundups, the intervals have to be power of 2, got {boundary}")
                index = min(boundary.bit_length() - 1, ROUNDUP_INTERVALS - 1)
                if first_key:
                    table[:index] = [parts] * index
                    first_key = False
                table[index] = parts
                last = index
            if self.position < len(self.tokens) and self.tokens[self.position] != "]":
                self._expect(",")
        return tuple(table)
