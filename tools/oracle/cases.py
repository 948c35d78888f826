"""Short snippets of PyTorch on "cuda" and the allocator's events of each: recorded on the oracle, compared with
the simulated GPU.

A family of rules has a module in `tools/oracle/rules` that draws snippets. `python -m tools.oracle.rules FAMILY --keep`
records them in tests/data/oracle_rules/FAMILY.json.gz, which its test replays.
"""

from __future__ import annotations

import gc
import gzip
import json
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from simgpu.recording.trace import LETTERS
from tools.oracle import run

FOLDER = run.ROOT / "tests" / "data" / "oracle_rules"
FORMAT = 1
GPUS = ("A100-80GB", "H100")


class Case(NamedTuple):
    """A snippet, in which `torch`, `nn` and `F` are at hand, and what it did on a GPU.

    `events`: "S2097152 a400 f400", the allocator's events in order, each a letter of `trace.LETTERS` and the bytes
    (requested ones, of a segment those of the segment). `error`: "Type: message" of what it raised, or None. `told`:
    what the snippet's calls of `tell(...)` say of its values (`described`), a line each.
    """

    gpu: str
    code: str
    events: str
    error: str | None
    told: str = ""


def described(value) -> str:
    """What is compared of a value: of tensors, and of all that holds some, where and how each lies."""
    import torch

    if isinstance(value, torch.Tensor):
        if isinstance(value, torch.nn.parameter.UninitializedTensorMixin):
            return f"{type(value).__name__} {value.device} {value.dtype}"
        flags = [name for name in ("requires_grad", "is_leaf", "is_cuda") if getattr(value, name)]
        grad = f" grad: {described(value.grad)}" if value.is_leaf and value.grad is not None else ""
        form = f"{tuple(value.shape)} {value.stride()} {value.storage_offset()}"
        return f"{type(value).__name__} {value.device} {value.dtype} {form} {' '.join(flags)}{grad}"
    if isinstance(value, torch.nn.Module):
        held = [*value.named_parameters(remove_duplicate=False), *value.named_buffers(remove_duplicate=False)]
        return f"{type(value).__name__} {described(dict(held))}"
    if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
        return f"{type(value).__name__} {value.device} {value.nbytes()}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {described(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(described, value)) + "]"
    return repr(value)


def outcome(code: str) -> tuple[str, str | None, str]:
    """Run a snippet on the "cuda" of this process, its cache empty before: its events, its error, what it told.

    What was there before has been collected, by `outcomes` or by the snippet before it."""
    import torch

    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    told = []
    names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    names["tell"] = lambda *values: told.append(" | ".join(map(described, values)))
    error = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(code, names)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    names.clear()
    gc.collect()
    history = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    kept = [event for event in history if event["action"] in LETTERS and event["action"] != "free_requested"]
    return " ".join(f"{LETTERS[event['action']]}{event['size']}" for event in kept), error, "\n".join(told)


def outcomes(codes: Iterable[str]) -> list[tuple[str, str | None, str]]:
    """`outcome` of each snippet, in a process that has touched CUDA before; the collector passes over what is there."""
    import torch

    torch.zeros(1, device="cuda")
    set_aside = gc.get_freeze_count() > 0  # what the tests have set aside already stays so
    gc.collect()
    gc.freeze()
    try:
        return [outcome(code) for code in codes]
    finally:
        if not set_aside:
            gc.unfreeze()


def on_oracle(codes: list[str], gpu: str, version: str = run.DEFAULT_VERSION) -> list[Case]:
    """What the snippets do on the oracle, in one process. Raises RuntimeError with its output where that fails."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "codes.json"), Path(folder, "outcomes.json")
        given.write_text(json.dumps(codes))
        done = subprocess.run(
            [sys.executable, "-m", "tools.oracle.cases", str(given), str(found)],
            env=run.environment(version, gpu),
            cwd=run.ROOT,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"the oracle ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return [Case(gpu, code, *result) for code, result in zip(codes, json.loads(found.read_text()), strict=True)]


def on_simulated(codes: list[str], gpu: str) -> list[Case]:
    """What the snippets do on the simulated GPU, in this process."""
    import labkit

    with labkit.simulated_gpu(gpu):
        return [Case(gpu, code, *result) for code, result in zip(codes, outcomes(codes), strict=True)]


def path_of(family: str) -> Path:
    """The file of a family of rules."""
    return FOLDER / f"{family}.json.gz"


def save(family: str, cases: list[Case], provenance: dict) -> None:
    """Write a family's cases."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": FORMAT, "provenance": provenance, "cases": cases}, separators=(",", ":"))
    path_of(family).write_bytes(gzip.compress(text.encode(), mtime=0))


def load(family: str) -> list[Case]:
    """A family's cases as they were recorded, or as they are here (`here`). Raises ValueError for a file of another
    format."""
    return here(family, stored(family))


def here(family: str, cases: Iterable[Case]) -> list[Case]:
    """A family's cases, of which this torch under this Python answers some in another way: these answers, where they
    are kept (tools/oracle/versions.py). Raises ValueError for a file of another format."""
    other = {(case.gpu, case.code): case for case in map(Case._make, others().get(family, []))}
    return [other.get((case.gpu, case.code), case) for case in cases]


def stored(family: str) -> list[Case]:
    """A family's cases as torch `run.DEFAULT_VERSION` under Python 3.11 or later answered them."""
    return [Case(*case) for case in _read(path_of(family))["cases"]]


def families() -> list[str]:
    """The families that are stored."""
    return sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.json.gz"))


@cache
def others() -> dict[str, list]:
    """By family, the cases that this torch under this Python answers in another way; empty where none are kept."""
    path = _path_of_others(metadata.version("torch").partition("+")[0])
    return _read(path)["families"] if path.exists() else {}


def save_others(version: str, families: dict[str, list[Case]], asked: int) -> None:
    """Keep what torch `version` under this Python answered in another way, of so many cases that it was asked."""
    made_by = "PyTorch's CUDA host code under stub libraries; no GPU was involved"
    provenance = {"made by": made_by, "torch": version, "python": platform.python_version(), "asked": asked}
    text = json.dumps({"format": FORMAT, "provenance": provenance, "families": families}, separators=(",", ":"))
    path = _path_of_others(version)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _path_of_others(version: str) -> Path:
    lifetimes = "3.10" if sys.version_info < (3, 11) else "3.11"  # from which Python on a call's arguments live so long
    return FOLDER / "others" / f"torch-{version}-python-{lifetimes}.json.gz"


def _read(path: Path) -> dict:
    content = json.loads(gzip.decompress(path.read_bytes()))
    if content["format"] != FORMAT:
        raise ValueError(f"{path}: format {content['format']}, wanted {FORMAT}")
    return content


def differences(cases: list[Case]) -> list[str]:
    """Those of the oracle's cases, all of one GPU, in which the simulated GPU does otherwise, described."""
    found = []
    for wanted, got in zip(cases, on_simulated([case.code for case in cases], cases[0].gpu), strict=True):
        if wanted != got:
            found.append(
                f"{wanted.code}\n  oracle:    {wanted.events}\n  simulated: {got.events}"
                + (f"\n  oracle:    {wanted.error}\n  simulated: {got.error}" if wanted.error != got.error else "")
                + (f"\n  oracle:    {wanted.told}\n  simulated: {got.told}" if wanted.told != got.told else "")
            )
    return found


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(json.dumps(outcomes(json.loads(source.read_text()))))
