"""Settings of the caching allocator: PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, parsed as PyTorch does."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from simgpu.allocator.physical import MIB
from simgpu.allocator.rounding import MIN_LARGE_ALLOC, ROUNDUP_INTERVALS

# Parses PYTORCH_CUDA_ALLOC_CONF as PyTorch does: `key:value,key:value`, in two passes.
# The first pass reads the keys that all accelerators have (`AcceleratorAllocatorConfig::parseArgs` in
# `c10/core/AllocatorConfig.cpp`), the second one CUDA's (`c10/cuda/CUDAAllocatorConfig.cpp`). Each skips the keys of
# the other. What precedes an error counts. Compared with torch 2.13.0.

MAX_REGISTER_THREADS = 128

BACKGROUND_THREADS = "pinned_use_background_threads"
HOST_SIZES = ("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb")
COMMON_KEYS = frozenset(
    {
        "max_split_size_mb",
        "max_non_split_rounding_mb",
        "garbage_collection_threshold",
        "roundup_power2_divisions",
        "expandable_segments",
        "large_segment_size_mb",
        BACKGROUND_THREADS,
        *HOST_SIZES,
    }
)
CUDA_BOOLEANS = (
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_free_catch_all",
    "graph_capture_record_stream_reuse",
)
"""Keys without an effect here: they concern locks, pinned host memory, graphs."""

CUDA_KEYS = frozenset(
    {
        *CUDA_BOOLEANS,
        "backend",
        "throw_on_cudamalloc_oom",
        "per_process_memory_fraction",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
    }
)

INTEGER = re.compile(r"[+-]?\d+")
DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
HEXADECIMAL = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)([pP][+-]?\d+)?")
NO_NUMBER = re.compile(r"([+-]?)(infinity|inf|nan)", re.IGNORECASE)


def signed(value: int) -> int:
    """Reinterprets an unsigned 64-bit number as a signed one."""
    return value - 2**64 if value >= 2**63 else value


def to_integer(token: str) -> int:
    """Converts as std::stoull does: the leading digits count, the rest is dropped ("30.5" is 30), and -1 is 2**64 - 1.

    Raises ValueError if there is no digit, or for more than 64 bits.
    """
    match = INTEGER.match(token)
    if match is None:
        raise ValueError(f"stoull: expected a whole number but got '{token}'")
    number = int(match.group())
    if abs(number) >= 2**64:
        raise ValueError(f"stoull: a number of at most 64 bits was expected, got '{token}'")
    return number % 2**64


def to_float(token: str) -> float:
    """Converts as std::stod does: decimal, hexadecimal ("0x0.8" is 0.5), infinite or NaN; the rest is dropped.

    Raises ValueError if there is no number, or one that a double cannot hold.
    """
    if match := NO_NUMBER.match(token):
        return float(match.group())
    match = HEXADECIMAL.match(token)
    try:
        if match is not None:
            text = match.group()
            number = float.fromhex(text)
        else:
            match = DECIMAL.match(token)
            if match is None:
                raise ValueError(f"stod: expected a number but got '{token}'")
            text = match.group()
            number = float(text)
    except OverflowError:
        number = math.inf
    vanished = number == 0 and re.search("[1-9]", re.split("[eEpP]", text)[0])
    if math.isinf(number) or vanished:
        raise ValueError(f"stod: '{token}' is out of range")
    return number


class Parser:
    """Parses a text; `found` holds fields of AllocatorSettings, and `ignored` the keys without an effect here.

    `large_segment_size` is the value so far, in bytes. `at_start` says whether PyTorch is just being loaded, because
    then the second pass is the one that reports an unknown key.
    """

    def __init__(self, text: str, large_segment_size: int, at_start: bool) -> None:
        # White space is dropped everywhere, also inside a number (std::isspace).
        self.tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"[ \t\n\v\f\r]", "", text))
        self.position = 0
        self.at_start = at_start
        self.minimum = large_segment_size  # the minimum of max_split_size, in bytes
        self.found: dict = {}
        self.ignored: dict = {}

    def run(self) -> None:
        """Runs both passes. Raises ValueError with PyTorch's wording."""
        # The smallest allowed split size depends on large_segment_size, wherever that is in the text.
        self._large_segment_size()
        self._pass(self._common, COMMON_KEYS, "CUDA" if self.at_start else "Accelerator", checks=not self.at_start)
        self._pass(self._cuda, CUDA_KEYS, "CUDA", checks=True)

    def _pass(self, read, keys: frozenset, name: str, checks: bool) -> None:
        self.position = 0
        while self.position < len(self.tokens):
            key = self._next("a key")
            if key in keys:
                read(key)
            elif checks and key not in COMMON_KEYS | CUDA_KEYS:
                raise ValueError(f"Unrecognized key '{key}' in {name} allocator config.")
            else:
                self._skip()
            if self.position < len(self.tokens):
                self._separator("','")

    def _common(self, key: str) -> None:
        if key == "max_split_size_mb":
            self.found["max_split_size"] = self._split_size(key)
        elif key == "max_non_split_rounding_mb":
            self.found["max_non_split_rounding_size"] = self._split_size(key)
        elif key == "garbage_collection_threshold":
            self.found[key] = self._threshold(key)
        elif key == "roundup_power2_divisions":
            self._divisions(key)
        elif key == "expandable_segments":
            self.found[key] = self._boolean(key)
        elif key == BACKGROUND_THREADS:
            self.ignored[key] = self._boolean(key)
        elif key in HOST_SIZES:
            self.ignored[key] = signed(self._integer(key) * MIB % 2**64)
        else:
            self._integer(key)  # large_segment_size_mb, which is already read

    def _cuda(self, key: str) -> None:
        if key in CUDA_BOOLEANS:
            self.ignored[key.replace("hip", "cuda")] = self._boolean(key)
        elif key == "throw_on_cudamalloc_oom":
            self.found[key] = self._boolean(key)
        elif key == "per_process_memory_fraction":
            self.found[key] = self._fraction(key)
        elif key == "pinned_num_register_threads":
            self.ignored[key] = self._register_threads(key)
        elif key == "pinned_reserve_segment_size_mb":
            self.ignored[key] = self._reserve_segment_size(key)
        else:
            self._backend(key)

    # Tokens (ConfigTokenizer in c10/core/AllocatorConfig.h).

    def _next(self, wanted: str) -> str:
        if self.position >= len(self.tokens):
            raise ValueError(f"Allocator config ends where {wanted} was expected: {''.join(self.tokens)!r}")
        token = self.tokens[self.position]
        self.position += 1
        return token

    def _separator(self, wanted: str) -> None:
        """Skips one token, because PyTorch checks the separator but continues whatever it is (torch 2.13)."""
        self._next(wanted)

    def _value(self, key: str) -> str:
        self._separator("':'")
        return self._next(f"a value for {key}")

    def _skip(self) -> None:
        """Skips a value: one token, or a list."""
        if self._value("a key") == "[":
            while self._next("']'") != "]":
                pass

    def _integer(self, key: str) -> int:
        return to_integer(self._value(key))

    def _boolean(self, key: str) -> bool:
        token = self._value(key)
        if token not in ("True", "False"):
            raise ValueError(
                f"Expected 'True' or 'False' at index {self.position - 1} in ConfigTokenizer but got '{token}'"
            )
        return token == "True"

    # Values.

    def _large_segment_size(self) -> None:
        for index, token in enumerate(self.tokens):
            if token == "large_segment_size_mb":
                self.position = index + 1
                megabytes = self._integer(token)
                if megabytes * MIB <= MIN_LARGE_ALLOC:
                    raise ValueError(
                        "CachingAllocator option large_segment_size_mb must be > "
                        f"{MIN_LARGE_ALLOC // MIB} MB, got {megabytes}"
                    )
                self.found["large_segment_size"] = self.minimum = _bytes(megabytes)

    def _split_size(self, key: str) -> int:
        megabytes = self._integer(key)
        if megabytes < self.minimum // MIB:
            raise ValueError(
                f"CachingAllocator option {key} too small, must be >= {self.minimum // MIB}, got {megabytes}"
            )
        return _bytes(megabytes)

    def _threshold(self, key: str) -> float:
        value = to_float(self._value(key))
        if not 0 < value < 1:
            raise ValueError(f"garbage_collect_threshold is invalid, set it in (0.0, 1.0), got {value}")
        return value

    def _fraction(self, key: str) -> float:
        value = to_float(self._value(key))
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

    def _backend(self, key: str) -> None:
        name = self._value(key)
        if name == "cudaMallocAsync":
            raise NotImplementedError(
                "backend:cudaMallocAsync is not modelled: it is a different allocator, inside the CUDA driver. "
                "Use backend:native (the default)."
            )
        if name != "native":
            raise ValueError(f"Unknown allocator backend, options are native and cudaMallocAsync, got '{name}'")

    def _divisions(self, key: str) -> None:
        token = self._value(key)
        if token != "[":
            parts = to_integer(token)
            if parts.bit_count() != 1:
                raise ValueError(f"For roundups, the divisions has to be power of 2, got {parts}")
            self.found[key] = [parts] * ROUNDUP_INTERVALS
            return
        table = self.found.setdefault(key, [0] * ROUNDUP_INTERVALS)
        last, is_first = 0, True
        while (token := self._next("']'")) != "]":
            parts = to_integer(self._value(key))
            if parts and parts.bit_count() != 1:
                raise ValueError(
                    f"For roundups, the divisions has to be power of 2 or 0 to disable roundup, got {parts}"
                )
            if token == ">":
                table[last + 1 :] = [parts] * (ROUNDUP_INTERVALS - last - 1)
            else:
                last = _interval(token)
                if is_first:
                    table[:last] = [parts] * last
                    is_first = False
                table[last] = parts
            if self.position < len(self.tokens) and self.tokens[self.position] != "]":
                self._separator("','")


def _bytes(megabytes: int) -> int:
    """Converts MiB to bytes, at most what 64 bits hold."""
    return min(megabytes, (2**64 - 1) // MIB) * MIB


def _interval(token: str) -> int:
    """Returns the index of a boundary, in MiB, in the table of `roundup_power2_divisions`."""
    boundary = to_integer(token)
    if boundary.bit_count() != 1:
        raise ValueError(f"For roundups, the intervals have to be power of 2, got {boundary}")
    return min(boundary.bit_length() - 1, ROUNDUP_INTERVALS - 1)


# Settings of the caching allocator: PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF.
# `AllocatorSettings.parse` accepts the same texts as PyTorch, and refuses the same ones with the same words, followed
# by what was given. Source: `c10/core/AllocatorConfig.cpp`, `c10/cuda/CUDAAllocatorConfig.cpp`; compared with torch
# 2.13.0 (`tools/oracle/settings_texts.py`). It differs on purpose if the text ends too early: PyTorch stops at an
# internal assertion ("please report a bug"), but the error here says what was expected.

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
