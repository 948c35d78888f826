"""Random texts of allocator settings, set one after another on PyTorch's running allocator and on the model.

    python -m tools.oracle.settings_texts                 # fresh texts
    python -m tools.oracle.settings_texts --keep          # and keep the oracle's answers as test data

Compared after each: whether it is refused and in which words, and what a memory snapshot shows of the settings (what
stands before an error counts). `tests/unit/simgpu/test_allocator_settings.py` replays the stored ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from simgpu.allocator.settings import AllocatorSettings, SettingsError
from tools.oracle import run

STORED = run.ROOT / "tests" / "data" / "allocator_settings.json.gz"

NUMBERS = [
    "0",
    "1",
    "2",
    "4",
    "8",
    "16",
    "19",
    "20",
    "21",
    "30",
    "32",
    "40",
    "64",
    "100",
    "128",
    "256",
    "1024",
    "-1",
    "+30",
    "30.5",
    "0x40",
    "1e3",
    "x",
    "18446744073709551616",
    "99999999999",
]
FRACTIONS = [
    "0",
    "0.0",
    "0.3",
    ".5",
    "0.8",
    "1",
    "1.0",
    "1.5",
    "-0.5",
    "0x0.8",
    "0x10",
    "0x",
    "1e-1",
    "1e999",
    "1e-999",
    "inf",
    "nan",
    "0.5x",
    "x",
    "+0.5",
    "5e-1",
]
BOOLEANS = ["True", "False", "true", "1", "False,", "True:x"]
BOUNDARIES = ["1", "2", "4", "64", "65", "256", "1024", "32768", "131072", ">", "x", "0"]
KINDS = {
    "max_split_size_mb": NUMBERS,
    "max_non_split_rounding_mb": NUMBERS,
    "large_segment_size_mb": ["10", "11", "20", "24", "30", "40", "x", "-1"],
    "garbage_collection_threshold": FRACTIONS,
    "per_process_memory_fraction": FRACTIONS,
    "pinned_num_register_threads": NUMBERS,
    "pinned_reserve_segment_size_mb": NUMBERS,
    "pinned_max_round_threshold_mb": NUMBERS,
    "pinned_max_cached_size_mb": NUMBERS,
    "backend": ["native", "foo", "Native"],
    "unknown": ["1", "[1:2]", "["],
    **dict.fromkeys(
        (
            "expandable_segments",
            "throw_on_cudamalloc_oom",
            "release_lock_on_cudamalloc",
            "release_lock_on_hipmalloc",
            "pinned_use_cuda_host_register",
            "pinned_use_hip_host_register",
            "pinned_use_background_threads",
            "pinned_free_catch_all",
            "graph_capture_record_stream_reuse",
        ),
        BOOLEANS,
    ),
}


def draw(rng: random.Random) -> str:
    """A text: often a good one."""
    parts = []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3))):
        key = rng.choice(["roundup_power2_divisions", *KINDS])
        good = rng.random() < 0.6
        value = _divisions(rng, good) if key == "roundup_power2_divisions" else rng.choice(KINDS[key])
        if good and value in ("x", "-1", "True:x", "False,"):
            value = "64"
        parts.append(f"{key}{':' if rng.random() < 0.97 else rng.choice(['=', '', '::', ','])}{value}")
    text = rng.choices((",", ", ", ",\t", ",,", ";"), (80, 8, 6, 3, 3))[0].join(parts)
    if rng.random() < 0.06:
        text += rng.choice((",", ":", "[", "]", " ", "\n", ",unknown"))
    if rng.random() < 0.06 and text:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice("\t \n\v:,[]") + text[place:]
    return text


def _divisions(rng: random.Random, good: bool) -> str:
    if rng.random() < 0.4:
        return rng.choice(("1", "2", "4", "8") if good else NUMBERS)
    entries = [
        f"{rng.choice(BOUNDARIES)}:{rng.choice(['0', '1', '2', '4', '8', '3', 'x'])}"
        for _ in range(rng.choice((0, 1, 2, 3)))
    ]
    return "[" + ",".join(entries) + rng.choices(("]", "", ",]", "]]"), (85, 5, 5, 5))[0]


def observe(texts: list[str]) -> list:
    """[the error's type and first words or None, the settings of a snapshot] after each text, on the oracle."""
    import torch

    torch.ones(1, device="cuda")
    found = []
    for text in texts:
        error = None
        try:
            torch._C._accelerator_setAllocatorSettings(text)
        except Exception as raised:
            error = str(raised).splitlines()[0]
        found.append([error, torch.cuda.memory._snapshot()["allocator_settings"]])
    return found


def on_model(texts: list[str]) -> list:
    """The same on the model."""
    settings = AllocatorSettings.parse("")
    found = []
    for text in texts:
        error = None
        try:
            settings = settings.updated(text)
        except SettingsError as raised:
            error, settings = str(raised), raised.settings
        found.append([error, settings.as_snapshot()])
    return found


def differences(texts: list[str], oracle: list, model: list) -> list[str]:
    """Where the two disagree."""
    return [
        f"{text!r}\n  oracle: {_apart(theirs, ours)}\n  model:  {_apart(ours, theirs)}"
        for text, theirs, ours in zip(texts, oracle, model, strict=True)
        if theirs[1] != ours[1] or not same_error(theirs[0], ours[0])
    ]


def _apart(one: list, other: list) -> list:
    """An answer with those settings alone that differ."""
    return [one[0], {key: value for key, value in one[1].items() if value != other[1].get(key)}]


def same_error(theirs: str | None, ours: str | None) -> bool:
    """Whether both accept, or both refuse in the same words; PyTorch's internal assertions and C++'s own errors have
    none that say anything."""
    if theirs is None or ours is None:
        return theirs is ours
    return "INTERNAL ASSERT" in theirs or ours.startswith(theirs.rstrip())


def on_oracle(texts: list[str], version: str) -> list:
    """What PyTorch's allocator says. Raises RuntimeError with its output where that fails."""
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder, "texts.json"), Path(folder, "found.json")
        given.write_text(json.dumps(texts))
        command = [sys.executable, "-m", "tools.oracle.settings_texts", "--on-oracle", given, result]
        environ = run.environment(version, "H100")
        done = subprocess.run(command, env=environ, cwd=run.ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the oracle ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return json.loads(result.read_text())


def replay() -> list[str]:
    """Where the model disagrees with the stored answers."""
    stored = json.loads(gzip.decompress(STORED.read_bytes()))
    return differences(stored["texts"], stored["oracle"], on_model(stored["texts"]))


def main() -> int:
    """Draw, run on both, report; the exit status is the number of texts that differ."""
    parser = argparse.ArgumentParser(prog="python -m tools.oracle.settings_texts")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, help="default: from the clock")
    parser.add_argument("--torch", default=run.DEFAULT_VERSION)
    parser.add_argument("--keep", action="store_true", help="as test data")
    parser.add_argument("--on-oracle", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_oracle:
        given, result = options.on_oracle
        result.write_text(json.dumps(observe(json.loads(given.read_text()))))
        return 0
    rng = random.Random(time.time_ns() if options.seed is None else options.seed)
    texts = [draw(rng) for _ in range(options.count)]
    oracle = on_oracle(texts, options.torch)
    found = differences(texts, oracle, on_model(texts))
    print(*found[:12], sep="\n")
    refused = sum(error is not None for error, _ in oracle)
    print(f"{len(texts) - len(found)} of {len(texts)} equal ({refused} refused)")
    if options.keep and not found:
        content = {"torch": options.torch, "texts": texts, "oracle": oracle}
        STORED.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
