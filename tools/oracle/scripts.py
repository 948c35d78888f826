"""Scripts as people write them, run to their ends on the simulated GPU and on the oracle, and their memory compared.

    python -m tools.oracle.scripts                           # those of tests/data/scripts, on an H100
    python -m tools.oracle.scripts --keep                    # and keep the oracle's peaks, which a test compares
    python -m tools.oracle.scripts --gpu T4 clm --values
    python -m tools.oracle.scripts -- train.py --its --own   # another script, in a copy of its folder
    python -m tools.oracle.scripts --ranks 8 --rank 7 -- train.py    # as one rank of many

Each side runs in a process and in a folder of its own. The simulated GPU runs first, as `simgpu run` does; what it
answers because it follows values is what the oracle answers there (`tools.oracle.zoo.answers`). The peaks are those of
the whole run, whatever the script resets.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simgpu.distributed.world import PER_NODE
from simgpu.recording.trace import Trace
from tools.oracle import run
from tools.oracle.report import Comparison, report

FOLDER = run.ROOT / "tests" / "data" / "scripts"
STORED = FOLDER / "oracle.json"


def _token_files(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name, size in (("train", 20000), ("val", 5000)):
        rng.integers(0, 512, size).astype(np.uint16).tofile(folder / f"{name}.bin")


def _text_files(folder: Path) -> None:
    words, rng = ["the", "memory", "of", "a", "small", "gpu", "is", "not", "what", "it", "holds"], random.Random(0)
    for name, lines in (("train", 300), ("valid", 100)):
        text = "\n".join(" ".join(rng.choice(words) for _ in range(12)) for _ in range(lines))
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def _nothing(folder: Path) -> None:
    """The script makes its data itself."""


@dataclass(frozen=True)
class Script:
    """A script: its path from `FOLDER`, its arguments, and a function that puts its data into its folder."""

    path: str
    arguments: str = ""
    data: Callable[[Path], None] = _nothing

    def prepare(self, folder: Path) -> Path:
        """A copy of the script's folder, with its data, in `folder`; the path of the script in it."""
        source = FOLDER / self.path
        place = folder / source.parent.name
        shutil.copytree(source.parent, place, ignore=shutil.ignore_patterns("__pycache__"))
        self.data(place)
        return place / source.name


SCRIPTS = {
    "nano": Script(
        "nano/train.py", "--max_iters=5 --always_save_checkpoint=1 --batch_size=4 --block_size=64", _token_files
    ),
    "clm": Script(
        "clm/run_clm.py",
        "--config_overrides n_embd=128,n_layer=3,n_head=4,vocab_size=512,n_positions=128 --train_file train.txt "
        "--validation_file valid.txt --output_dir out --do_train --do_eval --bf16 --gradient_checkpointing "
        "--block_size 128 --per_device_train_batch_size 4 --max_steps 5 --eval_strategy steps --eval_steps 3 "
        "--save_steps 3 "
        "--max_eval_samples 12 --logging_steps 2 --report_to none",
        _text_files,
    ),
    "vision": Script(
        "vision/train.py",
        "--amp --model-ema --clip-grad-norm 1.0 --no-cudnn --images 32 --batch-size 12 --side 32",
        _nothing,
    ),
}


def execute(
    path: Path,
    arguments: list[str],
    folder: Path,
    name: str,
    gpu: str,
    simulated: bool,
    values: bool,
    place: tuple[int, int] | None = None,
) -> None:
    """Runs a script here, on this process' GPU or a simulated one; writes its trace and its peaks into `folder`.
    `place`: rank and number of ranks, of a script that is one of many."""
    import torch

    from simgpu.recording.history import record
    from simgpu.running.script import Script as Program
    from tools.oracle import labels
    from tools.oracle.zoo import answers

    tops: list[tuple[int, int]] = []

    def note() -> None:
        tops.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))

    def whole(stage) -> None:
        reset = torch.cuda.reset_peak_memory_stats

        def noted(*given):
            note()
            reset(*given)

        torch.cuda.reset_peak_memory_stats = noted
        try:
            with Program(str(path), arguments).as_main() as go:
                go()
        finally:
            torch.cuda.reset_peak_memory_stats = reset
        note()
        stage("end")

    def traced() -> None:
        with answers.the_same(name):
            trace, _ = record(name, whole, {}, where=labels.where, stacks="python")
        trace.save(folder / f"{name}.json.gz")

    os.chdir(path.parent)
    if not simulated:
        with nullcontext() if place is None else _alone(*place):
            traced()
    else:
        from unittest.mock import patch

        import simgpu
        from simgpu import session
        from tools.oracle.simulated import frames

        with patch.object(session, "python_frames", frames):
            rank, ranks = place or (None, None)
            found = simgpu.run(traced, gpu=gpu, values=values, rank=rank, ranks=ranks)
        print(found)
        if found.outcome == "failed":
            sys.exit(2)
    peak, reserved = (max(one) for one in zip(*tops, strict=True))
    (folder / f"{name}.peaks.json").write_text(json.dumps({"peak": peak, "reserved": reserved}))


@contextmanager
def _alone(rank: int, ranks: int) -> Iterator[None]:
    """The oracle as one rank of many, which pauses after each step of an optimizer (`simgpu.stub.rank`)."""
    from torch.optim.optimizer import register_optimizer_step_post_hook as after_each_step

    from simgpu.stub.rank import A_ROUND, rank_of

    pause = after_each_step(lambda *_: time.sleep(A_ROUND))
    try:
        with rank_of(rank, ranks, min(PER_NODE, ranks)):
            yield
    finally:
        pause.remove()


def side(
    script: Script,
    name: str,
    gpu: str,
    folder: Path,
    version: str | None,
    values: bool,
    place: tuple[int, int] | None = None,
) -> dict:
    """Runs a script in a process of its own: on the oracle of torch `version`, or, without one, on the simulated GPU.
    Its peaks, and its trace in `folder`. Raises RuntimeError with the log of one that failed."""
    from tools.oracle.zoo import answers

    folder.mkdir()
    path = script.prepare(folder)
    environ = run.here(os.environ) if version is None else run.environment(version, gpu)
    environ = {**environ, "HF_HUB_OFFLINE": "1", answers.VARIABLE: str(folder.parent)}
    environ["MOCK_NDEV"] = "1" if place is None else str(min(PER_NODE, place[1]))
    call = [path, script.arguments.split(), folder, name, gpu, version is None, values, place]
    given = json.dumps([str(one) if isinstance(one, Path) else one for one in call])
    with (folder / "log").open("w") as log:
        ended = subprocess.run(
            [sys.executable, "-m", "tools.oracle.scripts", "--side", given],
            env=environ,
            cwd=run.ROOT,
            stdout=log,
            stderr=log,
        )
    text = (folder / "log").read_text(errors="replace")
    if ended.returncode:
        raise RuntimeError(f"{'the simulated GPU' if version is None else 'the oracle'}:\n{text[-6000:]}")
    return {**json.loads((folder / f"{name}.peaks.json").read_text()), "log": text}


def compare(script: Script, name: str, options) -> dict | None:
    """Both sides; prints what came of them. The oracle's peaks if all is equal, else None."""
    place = None if options.ranks is None else (options.rank, options.ranks)
    with tempfile.TemporaryDirectory() as scratch:
        ours, theirs = Path(scratch, "simulated"), Path(scratch, "oracle")
        try:
            found = side(script, name, options.gpu, ours, None, options.values, place)
            if options.page:
                print(found["log"])
            wanted = side(script, name, options.gpu, theirs, options.torch, options.values, place)
        except RuntimeError as error:
            print(f"FAILED   {name} on {error}")
            return None
        traces = [Trace.load(folder / f"{name}.json.gz") for folder in (theirs, ours)]
        comparison = Comparison(*traces)
        print(report(comparison, 2, 5))
        for which in ("peak", "reserved"):
            print(f"  {which:9}{wanted[which]:>16,} B (oracle){found[which]:>16,} B (simulated)")
        equal = all(found[which] == wanted[which] for which in ("peak", "reserved"))
        return {which: wanted[which] for which in ("peak", "reserved")} if equal else None


def _chosen(names: list[str]) -> dict[str, Script]:
    """The scripts that were named, all if none was; or one by its path, with its arguments."""
    if names and names[0].endswith(".py"):
        path = Path(names[0]).resolve()
        return {path.stem: Script(str(path), " ".join(names[1:]))}
    return {name: SCRIPTS[name] for name in names or SCRIPTS}


def main() -> int:
    """Compare, and keep the oracle's peaks with --keep; the exit status is 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SCRIPTS)}; or a path and its arguments, after --")
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--torch", default=run.DEFAULT_VERSION)
    parser.add_argument("--values", action="store_true", help="the simulated GPU has the values of all tensors")
    parser.add_argument("--ranks", type=int, help="the script is one of so many")
    parser.add_argument("--rank", type=int, default=0, help="which one of them")
    parser.add_argument("--page", action="store_true", help="print the page of the simulated run")
    parser.add_argument("--keep", action="store_true", help="keep the oracle's peaks as test data")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        path, arguments, folder, *rest = json.loads(options.side)
        execute(Path(path), arguments, Path(folder), *rest)
        return 0
    other = options.names and options.names[0].endswith(".py")
    if other:
        chosen = {
            Path(options.names[0]).stem: Script(str(Path(options.names[0]).resolve()), " ".join(options.names[1:]))
        }
    else:
        chosen = {name: SCRIPTS[name] for name in options.names or SCRIPTS}
    found = {name: compare(script, name, options) for name, script in chosen.items()}
    if options.keep:
        stored = json.loads(STORED.read_text()) if STORED.exists() else {}
        for name, peaks in found.items():
            if peaks is not None:
                stored[name] = {"gpu": options.gpu, "torch": options.torch, **peaks}
        STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    return int(None in found.values())


if __name__ == "__main__":
    sys.exit(main())
