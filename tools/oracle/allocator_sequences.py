"""Random sequences of requests, given to PyTorch's own caching allocator and to the model.

    python -m tools.oracle.allocator_sequences                        # every setting, one fresh sequence each
    python -m tools.oracle.allocator_sequences --settings expandable gc --seeds 3 --steps 4000
    python -m tools.oracle.allocator_sequences --store                # keep them as test data

The oracle runs a sequence on a small device, under stub CUDA libraries, and writes down after every step each
counter of `memory_stats()`, the address, and the text of an out-of-memory error; at the end the whole history
and the segments. The model runs the same sequence and must agree on all of it. `tests/oracle` replays the
stored sequences; with `replay` below the tests and this command share one comparison.

Not comparable: the process' own memory in the error's text, which the oracle cannot know.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from simgpu.allocator.caching import CachingAllocator, OutOfMemory
from simgpu.allocator.physical import MIB, RANGES_FROM, SEGMENTS_FROM, Device
from simgpu.allocator.settings import AllocatorSettings, SettingsError
from tools.oracle.run import DEFAULT_VERSION, ROOT, environment

STORED = ROOT / "tests" / "data" / "allocator_sequences"
TOTAL, CONTEXT = 1536 * MIB, 500 * MIB
ORACLE_SEGMENTS_FROM, ORACLE_RANGES_FROM = 0x2000_0000_0000, 0x6000_0000_0000
STREAMS = (0, 3, 35)
"""Ids of the streams of a sequence: the default one and the first two of the pool (`Stream.stream_id`)."""
PROCESS_MEMORY = re.compile(r"this process has \S+ \S+ memory")


@dataclass(frozen=True)
class Setting:
    """A value of PYTORCH_CUDA_ALLOC_CONF, and a memory fraction set at the start (None: none).

    `later` holds values that the sequence changes to, `records` the share of `record_stream` among the steps;
    `since` is the first torch version that knows the option. `pools`: whether private pools are made, used and dropped.
    """

    conf: str = ""
    fraction: float | None = None
    later: tuple[str, ...] = ()
    records: float = 0.02
    since: tuple[int, int] = (2, 11)
    pools: bool = False


SETTINGS = {
    "default": Setting(),
    "streams": Setting(records=0.45),
    "fraction": Setting(fraction=0.5),
    "process_fraction": Setting("per_process_memory_fraction:0.4"),
    "max_split": Setting("max_split_size_mb:64"),
    "max_split_rounding": Setting("max_split_size_mb:40,max_non_split_rounding_mb:30"),
    "max_split_fraction": Setting("max_split_size_mb:32", 0.5),
    "gc": Setting("garbage_collection_threshold:0.6", 0.7),
    "gc_max_split": Setting("garbage_collection_threshold:0.4,max_split_size_mb:100", 0.6),
    "roundup": Setting("roundup_power2_divisions:4"),
    "roundup_list": Setting("roundup_power2_divisions:[1:8,4:0,16:2,64:4,>:1]"),
    "large_segment": Setting("large_segment_size_mb:40"),
    "large_segment_max_split": Setting("large_segment_size_mb:30,max_split_size_mb:30"),
    "throw": Setting("throw_on_cudamalloc_oom:True", since=(2, 12)),
    "expandable": Setting("expandable_segments:True"),
    "expandable_fraction": Setting("expandable_segments:True", 0.5),
    "expandable_max_split": Setting("expandable_segments:True,max_split_size_mb:64"),
    "expandable_gc": Setting("expandable_segments:True,garbage_collection_threshold:0.5", 0.7),
    "expandable_mixed": Setting(
        "expandable_segments:True,large_segment_size_mb:32,roundup_power2_divisions:[16:4,>:2]"
    ),
    "changing": Setting(
        later=(
            "expandable_segments:True",
            "expandable_segments:False",
            "roundup_power2_divisions:8",
        )
    ),
    "changing_sizes": Setting(
        fraction=0.8,
        since=(2, 13),
        later=(
            "",
            "garbage_collection_threshold:0.4",
            "garbage_collection_threshold:0.7",
            "large_segment_size_mb:40",
            "large_segment_size_mb:20,roundup_power2_divisions:[1:4,64:8,>:2]",
            "per_process_memory_fraction:0.3",
            "throw_on_cudamalloc_oom:True",
            "throw_on_cudamalloc_oom:False",
            "garbage_collection_threshold:0.5,max_split_size_mb:1",
            "roundup_power2_divisions:4,unknown:1",
        ),  # a changed max_split_size breaks the sets of blocks in PyTorch itself (torch 2.13: double free)
    ),
    "pools": Setting(pools=True, since=(2, 13)),
    "pools_fraction": Setting("max_split_size_mb:64,garbage_collection_threshold:0.5", 0.6, pools=True, since=(2, 13)),
    "pools_expandable": Setting("expandable_segments:True", pools=True, records=0.1, since=(2, 13)),
    "pools_streams": Setting(pools=True, records=0.4, since=(2, 13)),
}


def draw(seed: int, steps: int, setting: Setting) -> list[list]:
    """A sequence of operations: allocate, free, record on a stream, empty the cache, reset counters.

    `["alloc", number, bytes, stream]`, `["free", number]`, `["record", number, stream]`, `["empty"]`,
    `["peak"]`, `["accumulated"]`, `["fraction", f]`, `["settings", text]` with one of the texts
    `setting.later`. A number whose allocation failed is passed over.
    """
    rng = random.Random(seed)
    operations: list[list] = [] if setting.fraction is None else [["fraction", setting.fraction]]
    live: dict[int, int] = {}
    favourites = [_draw_size(rng) for _ in range(12)]
    number, filling, target = 0, True, TOTAL
    pools = _PoolsDrawn(rng) if setting.pools else None
    while len(operations) < steps:
        level = sum(live.values())
        if filling and level > target:
            filling, target = False, rng.uniform(0.2, 0.8) * TOTAL
        elif not filling and level < target:
            filling, target = True, rng.uniform(0.7, 1.5) * TOTAL
        chance = rng.random()
        if pools is not None and chance > 0.96:
            operations.append(pools.draw())
        elif chance < 0.004:
            operations.append(["empty"])
        elif chance < 0.006:
            operations.append(["peak"])
        elif chance < 0.008:
            operations.append(["accumulated"])
        elif setting.later and chance < 0.02:
            operations.append(["settings", rng.choice(setting.later)])
        elif live and chance > 1 - setting.records:
            operations.append(["record", rng.choice(list(live)), rng.choice(STREAMS)])
        elif live and rng.random() < (0.38 if filling else 0.62):
            operations.append(["free", rng.choice(list(live))])
            del live[operations[-1][1]]
        else:
            size = rng.choice(favourites) if rng.random() < 0.4 else _draw_size(rng)
            stream = rng.choices(STREAMS, (80, 15, 5))[0]
            operations.append(["alloc", number, size, stream])
            live[number] = size
            number += 1
    return operations


class _PoolsDrawn:
    """What a sequence does with private pools: they begin and end as nested `with` blocks do."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.made = 0
        self.idle: list[int] = []
        self.active: list[int] = []

    def draw(self) -> list:
        kind = self.rng.random()
        if self.active and kind < 0.45:
            self.idle.append(self.active.pop())
            return ["end", self.idle[-1]]
        if self.idle and kind < 0.8:
            self.active.append(self.idle.pop(self.rng.randrange(len(self.idle))))
            return ["begin", self.active[-1]]
        if self.idle and not self.active and kind < 0.88:
            return ["drop", self.idle.pop(self.rng.randrange(len(self.idle)))]
        self.made += 1
        self.idle.append(self.made)
        return ["pool", self.rng.choice(["", "", "", "no_split", "use_on_oom"])]


def _draw_size(rng: random.Random) -> int:
    """Bytes, with weight on the places where a rule changes."""
    kind = rng.random()
    if kind < 0.02:
        return rng.choice([0, 1, 511, 512, 513, TOTAL, TOTAL - CONTEXT, 2 * TOTAL])
    if kind < 0.30:
        return rng.randint(1, 8192)
    if kind < 0.45:
        return rng.randint(8192, MIB)
    if kind < 0.55:
        edge = rng.choice([1, 2, 4, 8, 10, 12, 16, 20, 32, 40, 64, 100, 128]) * MIB
        return edge + rng.choice([-512, -1, 0, 1, 512, 4096])
    if kind < 0.85:
        return rng.randint(MIB, 20 * MIB)
    if kind < 0.97:
        return rng.randint(20 * MIB, 120 * MIB)
    return rng.randint(120 * MIB, 700 * MIB)


# On the oracle: the same file, run as a script by the oracle's Python.


def run_on_oracle(setting: Setting, operations: list[list], version: str) -> dict:
    """What PyTorch's own allocator did. Raises RuntimeError with its output when the run fails."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "operations.json"), Path(folder, "result.json")
        source.write_text(json.dumps(operations))
        environ = environment(version, "A100-80GB") | {
            "MOCK_TOTAL": str(TOTAL),
            "MOCK_CTX": str(CONTEXT),
            "PYTORCH_CUDA_ALLOC_CONF": setting.conf,
        }
        command = [sys.executable, "-m", "tools.oracle.allocator_sequences", "--on-oracle", source, result]
        done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the oracle failed on {setting}:\n{done.stderr[-3000:]}")
        return json.loads(result.read_text())


class OracleSide:
    """PyTorch's own allocator; only ever made inside the oracle."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.OutOfMemory = torch.OutOfMemoryError
        streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in STREAMS[1:])]
        self.streams = {stream.stream_id: stream for stream in streams}
        self.ids = {stream.cuda_stream: stream.stream_id for stream in streams}
        if tuple(self.streams) != STREAMS or sorted(self.ids) != list(self.ids):
            raise RuntimeError(f"expected the ids {STREAMS} and handles that rise, got {self.ids}")
        torch.empty(0, device="cuda")
        torch.cuda.memory._record_memory_history(enabled="all", context=None)
        self.live: dict = {}
        self.empty = torch.cuda.empty_cache
        self.peak = torch.cuda.reset_peak_memory_stats
        self.accumulated = torch.cuda.reset_accumulated_memory_stats
        self.fraction = torch.cuda.set_per_process_memory_fraction
        self.snapshot = torch.cuda.memory._snapshot
        self.pools: dict = {}

    def alloc(self, number: int, size: int, stream: int) -> int:
        with self.torch.cuda.stream(self.streams[stream]):
            tensor = self.torch.empty(size, dtype=self.torch.uint8, device="cuda")
        self.live[number] = tensor
        return tensor.data_ptr()

    def free(self, number: int) -> None:
        self.live.pop(number, None)

    def record(self, number: int, stream: int) -> None:
        if number in self.live:
            self.live[number].record_stream(self.streams[stream])

    def settings(self, text: str) -> None:
        try:
            self.torch._C._accelerator_setAllocatorSettings(text)
        except ValueError:
            return  # what stands before the error counts

    def pool(self, option: str) -> None:
        self.pools[len(self.pools) + 1] = self.torch.cuda.MemPool(**({option: True} if option else {}))

    def begin(self, number: int) -> None:
        self.torch._C._cuda_beginAllocateCurrentThreadToPool(0, self.pools[number].id)

    def end(self, number: int) -> None:
        self.torch._C._cuda_endAllocateToPool(0, self.pools[number].id)
        self.torch._C._cuda_releasePool(0, self.pools[number].id)

    def drop(self, number: int) -> None:
        self.pools[number] = None

    def stats(self) -> dict:
        return self.torch._C._cuda_memoryStats(0)

    def offset(self, address: int) -> list:
        return _offset(address, ORACLE_SEGMENTS_FROM, ORACLE_RANGES_FROM)

    def stream(self, handle: int) -> int:
        return self.ids[handle]


# On the model.


def run_on_model(setting: Setting, operations: list[list], version: str) -> dict:
    """What the model of the allocator does with the same sequence."""
    return observe(ModelSide(setting, version), operations)


class ModelSide:
    """The model of the allocator of torch `version`."""

    OutOfMemory = OutOfMemory

    def __init__(self, setting: Setting, version: str) -> None:
        allocator = CachingAllocator(
            Device(TOTAL, CONTEXT),
            AllocatorSettings.parse(setting.conf),
            version_numbers(version),
            record_event=lambda stream: lambda: True,  # under the stubs every event has always happened
        )
        allocator.record_history("all", context=None)
        self.allocator = allocator
        self.live: dict = {}
        self.empty = allocator.empty_cache
        self.peak = allocator.reset_peak_stats
        self.accumulated = allocator.reset_accumulated_stats
        self.fraction = allocator.set_memory_fraction
        self.stats = allocator.stats
        self.snapshot = allocator.snapshot

    def alloc(self, number: int, size: int, stream: int) -> int:
        block = self.allocator.malloc(size, stream)
        if block is None:
            return 0
        self.live[number] = block
        return block.address

    def free(self, number: int) -> None:
        if number in self.live:
            self.allocator.free(self.live.pop(number))

    def record(self, number: int, stream: int) -> None:
        if number in self.live:
            self.allocator.record_stream(self.live[number], stream)

    def settings(self, text: str) -> None:
        with contextlib.suppress(SettingsError):
            self.allocator.set_settings(text)

    def pool(self, option: str) -> None:
        pools = self.allocator.pools
        pools.make(pools.new_id(), no_split=option == "no_split", use_on_oom=option == "use_on_oom")

    def begin(self, number: int) -> None:
        self.allocator.pools.begin((0, number), lambda stream: True)

    def end(self, number: int) -> None:
        self.allocator.pools.end((0, number))
        self.allocator.pools.release((0, number))

    def drop(self, number: int) -> None:
        self.allocator.drop_pool((0, number))

    def offset(self, address: int) -> list:
        return _offset(address, SEGMENTS_FROM, RANGES_FROM)

    def stream(self, number: int) -> int:
        return number


# What is observed, and how it is compared.


def observe(side: OracleSide | ModelSide, operations: list[list]) -> dict:
    """Run the steps on one side.

    Keeps the changes of the counters after each step, the addresses, the errors' texts, and at the end the
    whole history, the segments and the settings, with addresses and streams in the terms of both sides.
    """
    before: dict[str, int] = {}
    keys: list[str] = []
    deltas, addresses, errors = [], [], {}
    for number, (kind, *arguments) in enumerate(operations):
        address = None
        try:
            address = getattr(side, kind)(*arguments)
        except side.OutOfMemory as error:
            errors[str(number)] = PROCESS_MEMORY.sub("this process has memory", str(error))
        if kind == "alloc":
            addresses.append(side.offset(address or 0))
        after = _flatten(side.stats())
        keys += [key for key in after if key not in keys]  # private pools come later
        changes = (_change(i, before.get(key, 0), after.get(key, 0)) for i, key in enumerate(keys))
        deltas.append([part for change in changes for part in change])
        before = after
    final = side.snapshot()
    trace = []
    for entry in final["device_traces"][0]:
        where = entry["device_free"] if entry["action"] == "oom" else side.offset(entry["addr"])
        pool = [list(entry["pool_id"])] if setting_has_pools(operations) else []
        trace.append([entry["action"], where, entry["size"], side.stream(entry["stream"]), *pool])
    for segment in final["segments"]:
        segment["address"] = side.offset(segment["address"])
        segment["stream"] = side.stream(segment["stream"])
        segment["segment_pool_id"] = list(segment["segment_pool_id"])
        for block in segment["blocks"]:
            block["address"] = side.offset(block["address"])
    return {
        "keys": keys,
        "deltas": deltas,
        "addresses": addresses,
        "errors": errors,
        "trace": trace,
        "segments": final["segments"],
        "allocator_settings": final["allocator_settings"],
    }


def setting_has_pools(operations: list[list]) -> bool:
    """Whether a sequence has private pools; then their ids are kept with the events."""
    return any(operation[0] == "pool" for operation in operations)


def _flatten(nested: dict, prefix: str = "") -> dict[str, int]:
    flat = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _change(index: int, before: int, after: int) -> tuple:
    return () if before == after else (index, after - before)


def _offset(address: int, segments_from: int, ranges_from: int) -> list:
    """An address as (where from, distance), so that two address spaces can be compared; 0 stays 0."""
    if not address:
        return [0, 0]
    origins = sorted(((ranges_from, "range"), (segments_from, "segment")), reverse=True)
    origin, name = next(pair for pair in origins if address >= pair[0])
    return [name, address - origin]


def differences(oracle: dict, model: dict, operations: list[list]) -> list[str]:
    """Where the two disagree, in the order of the steps; empty when they agree on everything."""
    found = []
    if sorted(oracle["keys"]) != sorted(model["keys"]):
        found.append(f"keys of memory_stats: {sorted(set(oracle['keys']) ^ set(model['keys']))}")
        return found
    for number, operation in enumerate(operations):
        theirs, ours = _named(oracle, number), _named(model, number)
        if theirs != ours:
            wrong = {key: (theirs.get(key), ours.get(key)) for key in theirs.keys() | ours.keys()}
            wrong = {key: pair for key, pair in wrong.items() if pair[0] != pair[1]}
            found.append(f"step {number} {operation}: changes of counters (oracle, model) {wrong}")
            break  # all later peaks and sums follow from the first difference
    for what in ("addresses", "trace", "segments"):
        for number, (theirs, ours) in enumerate(zip(oracle[what], model[what], strict=False)):
            if theirs != ours:
                found.append(f"{what}[{number}]: oracle {theirs}, model {ours}")
                break
        else:
            if len(oracle[what]) != len(model[what]):
                found.append(f"{what}: oracle has {len(oracle[what])}, model {len(model[what])}")
    for what in ("errors", "allocator_settings"):
        if oracle[what] != model[what]:
            theirs, ours = oracle[what], model[what]
            key = min(key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key))
            found.append(f"{what}[{key}]: oracle {theirs.get(key)!r}, model {ours.get(key)!r}")
    return found


def version_numbers(version: str) -> tuple[int, int]:
    """(2, 13) of "2.13.0"."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _named(observed: dict, number: int) -> dict[str, int]:
    delta = observed["deltas"][number]
    return {observed["keys"][i]: change for i, change in zip(delta[::2], delta[1::2], strict=True)}


# Test data: everything per step, and digests of the long lists at the end.


def store(path: Path, name: str, seed: int, operations: list[list], version: str, oracle: dict) -> None:
    """Write a sequence with the oracle's observations, small enough for the repository."""
    content = {
        "torch": version,
        "setting": [SETTINGS[name].conf, SETTINGS[name].fraction],
        "seed": seed,
        "operations": operations,
        **oracle,
        "trace": digest(oracle["trace"]),
        "segments": digest(oracle["segments"]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text, mtime=0))


def replay(path: Path) -> list[str]:
    """Run the model on a stored sequence; the differences from what the oracle did."""
    stored = json.loads(gzip.decompress(path.read_bytes()))
    model = run_on_model(Setting(*stored["setting"]), stored["operations"], stored["torch"])
    for what in ("trace", "segments"):
        model[what] = digest(model[what])
    return differences(stored, model, stored["operations"])


def digest(value) -> list:
    """The length and a SHA-256 of something that is too long to keep."""
    if isinstance(value, list) and value:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        return [len(value), hashlib.sha256(text.encode()).hexdigest()]
    return [0, ""]


def main() -> int:
    """Draw, run on both, report; the exit status is the number of sequences that differ."""
    parser = argparse.ArgumentParser(description="random sequences on PyTorch's allocator and on the model")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=1, help="sequences per setting")
    parser.add_argument("--first-seed", type=int, help="default: from the clock, so that each call is fresh")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--torch", default=DEFAULT_VERSION, help="the oracle's version")
    parser.add_argument("--store", action="store_true", help="keep the sequences as test data")
    parser.add_argument("--on-oracle", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.on_oracle:
        source, result = arguments.on_oracle
        result.write_text(json.dumps(observe(OracleSide(), json.loads(source.read_text()))))
        return 0
    first = arguments.first_seed if arguments.first_seed is not None else time.time_ns() % 10**6
    wrong = 0
    for name in arguments.settings:
        for seed in range(first, first + arguments.seeds):
            setting = SETTINGS[name]
            if version_numbers(arguments.torch) < setting.since:
                print(f"{name:24} not in torch {arguments.torch}")
                continue
            operations = draw(seed, arguments.steps, setting)
            oracle = run_on_oracle(setting, operations, arguments.torch)
            model = run_on_model(setting, operations, arguments.torch)
            found = differences(oracle, model, operations)
            wrong += bool(found)
            verdict = "equal" if not found else "DIFFERENT"
            print(f"{name:24} seed {seed} {len(operations)} steps {len(oracle['errors'])} errors: {verdict}")
            for line in found:
                print("   ", line)
            if arguments.store and not found:
                other = "" if arguments.torch == DEFAULT_VERSION else f"-{arguments.torch}"
                store(STORED / f"{name}{other}.json.gz", name, seed, operations, arguments.torch, oracle)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
