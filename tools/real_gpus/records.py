"""Runs records of KellerJordan/modded-nanogpt on the stub engine, and reads the peaks that their logs print.

A log begins with the code that made it, and ends with the peak memory of rank 0. `checkout` is a folder with a checkout
of that repository. Nothing of it is kept here but figures.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path

import simgpu

ITERATIONS = 3
"""Training steps that a record makes here. Memory is the same from the second step on."""
RANKS = 8
GPU = "H100"

SETTING = "TORCHINDUCTOR_SIZE_ASSERTS"
"""With 0, Inductor does not check the strides of custom operators. Some records declare other ones than they return."""

TRACKS = ("track_1_short", "track_2_medium")
NEWER_PYTHON = f"its code needs a newer Python than {sys.version_info.major}.{sys.version_info.minor}, which ran here"
NOT_HERE = {
    "flash_attn_interface": "FlashAttention-3 is imported",
    "kernels": "kernels are loaded from the Hugging Face Hub",
    "muon": "`muon` is imported, which is not part of the repository",
}
"""Modules that records import and that cannot be installed from PyPI, or fetch binaries when they run."""
NO_PEAK = "no log prints a peak"

_END_OF_CODE = "=" * 100
_PEAK = re.compile(r"^peak memory (?:consumption|allocated): (\d+) MiB(?: reserved: (\d+) MiB)?", re.M)
_TORCH = re.compile(r"[Pp]y[Tt]orch (\d[\w.+]*)")
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_DATED = re.compile(r"\d{4}-\d\d-\d\d")
_IMPORTS = re.compile(r"^\s*(?:from|import)\s+(\w+)", re.M)
_CARD = re.compile(r"\|\s+\d+\s+(NVIDIA [\w \-]+?)\s+(?:On|Off)\s")
_STEPS = re.compile(r"^(\s+num_iterations\s*(?::\s*int\s*)?=\s*)\d+", re.M)

# Tokens as the records read them: 256 numbers of 32 bits (the third is the number of tokens), and 16 bits a token.
_MAGIC, _VERSION, _END_OF_TEXT, _WORDS = 20240520, 1, 50256, 50257
TRAINING_TOKENS, VALIDATION_TOKENS, _DOCUMENT = 30_000_000, 12_000_000, 600
FILES = {"fineweb_train_000001.bin": TRAINING_TOKENS, "fineweb_val_000000.bin": VALIDATION_TOKENS}
FOLDER = Path("data", "fineweb10B")


@dataclass(frozen=True)
class Published:
    """What the logs of a record say: torch and cards, and the smallest and the largest peak of them, in MiB.

    `logs` is their number. `reserved` is None where they print none.
    """

    logs: int
    torch: str
    cards: str
    allocated: tuple[int, int]
    reserved: tuple[int, int] | None


def logs(checkout: Path, record: str) -> list[Path]:
    """The logs in the folder of a record that print a peak; ValueError if there is none."""
    found = sorted((checkout / "records" / record).rglob("*"))
    found = [path for path in found if path.suffix in (".txt", ".log") and path.is_file()]
    found = [path for path in found if _PEAK.search(path.read_text(encoding="utf-8", errors="replace"))]
    if not found:
        raise ValueError(f"no log in {checkout / 'records' / record} prints a peak of memory")
    return found


def published(checkout: Path, record: str) -> Published:
    """Reads the logs of a record, those whose code is the first one's."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in logs(checkout, record)]
    texts = [text for text in texts if _code(text).split() == _code(texts[0]).split()]
    peaks = [_PEAK.findall(text)[-1] for text in texts]
    allocated, reserved = [int(one) for one, _ in peaks], [int(one) for _, one in peaks if one]
    cards = _CARD.findall(texts[0])
    torch = _TORCH.search(texts[0].removeprefix(_code(texts[0])))
    return Published(
        len(texts),
        torch[1] if torch else "",
        f"{len(cards)} × {cards[0].removeprefix('NVIDIA ')}" if cards else "",
        (min(allocated), max(allocated)),
        (min(reserved), max(reserved)) if reserved else None,
    )


def printed(folder: Path, record: str) -> tuple[int, int | None] | None:
    """What the last run of a record in `folder` printed as its peak, MiB allocated and reserved; None if nothing.

    It may be lower than the report's, because some records reset PyTorch's counters after their warm-up.
    """
    texts = sorted((_own(folder, record) / "logs").glob("*.txt"), key=lambda path: path.stat().st_mtime)
    found = _PEAK.findall(
        texts[-1].read_text(encoding="utf-8", errors="replace").split(_END_OF_CODE)[-1] if texts else ""
    )
    return (int(found[-1][0]), int(found[-1][1]) if found[-1][1] else None) if found else None


def _own(folder: Path, record: str) -> Path:
    return folder / record.replace("/", "-")


def _code(text: str) -> str:
    return text.split(_END_OF_CODE)[0]


def release(torch: str) -> str:
    """The release of a version of torch: "2.7.0" for the nightly build 2.7.0.dev20250125+cu126, which came before it.

    Raises ValueError for a text that names no version.
    """
    found = _RELEASE.match(torch)
    if found is None:
        raise ValueError(f"no version of torch: {torch!r}")
    return found[0]


def survey(checkout: Path) -> dict[str, str]:
    """Every record of `TRACKS`, and why it cannot be run here: "" where it can, a value of `NOT_HERE`, `NO_PEAK` or
    `NEWER_PYTHON`."""
    folders = (one for track in TRACKS for one in sorted((checkout / "records" / track).iterdir()) if one.is_dir())
    names = [f"{one.parent.name}/{one.name}" for one in folders if _DATED.match(one.name)]
    return {name: _lacks(checkout, name) for name in names}


def _lacks(checkout: Path, record: str) -> str:
    try:
        first = logs(checkout, record)[0]
    except ValueError:
        return NO_PEAK
    code = _code(first.read_text(encoding="utf-8", errors="replace"))
    imported = set(_IMPORTS.findall(code))
    if lacking := next((what for module, what in NOT_HERE.items() if module in imported), ""):
        return lacking
    try:
        ast.parse(code)
    except SyntaxError:
        return NEWER_PYTHON
    return ""


def program(checkout: Path, record: str) -> str:
    """The code of a record, with fewer iterations; ValueError where their number is not found."""
    text = _code(logs(checkout, record)[0].read_text(encoding="utf-8", errors="replace"))
    changed, times = _STEPS.subn(rf"\g<1>{ITERATIONS}", text)
    if times != 1:
        raise ValueError(f"{record}: the number of iterations is set {times} times in its code, and not once")
    return changed


def settings() -> str:
    """The setting of the environment that a record may need, as a shell writes it; "" if it is not set."""
    return f"{SETTING}={os.environ[SETTING]}" if SETTING in os.environ else ""


def late() -> bool:
    """Whether asynchronous work ends as late as it can in this environment, which gives the upper bound."""
    return os.environ.get("MOCK_COMPLETION") == "sync"


def write_tokens(folder: Path) -> None:
    """Writes files of tokens, which a record reads, to `folder`. Their values do not matter, but documents end."""
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    for name, number in FILES.items():
        if (place / name).exists():
            continue
        tokens = array("H", (at * 7919 % (_WORDS - 1) for at in range(_DOCUMENT)))
        tokens[0] = _END_OF_TEXT
        head = array("i", [_MAGIC, _VERSION, number, *[0] * 253])
        (place / name).write_bytes(head.tobytes() + (tokens * (number // _DOCUMENT)).tobytes())


def run(checkout: Path, record: str, folder: Path, torch: str | None = None) -> simgpu.Report:
    """Runs a record as rank 0 of 8 on the stub engine, in a folder of its own inside `folder`; returns the report.

    `torch`: the version to run it on, by default the release of the one that its log names.
    """
    torch = torch or release(published(checkout, record).torch)
    write_tokens(folder)
    own = _own(folder, record)
    (own / "logs").mkdir(parents=True, exist_ok=True)
    if not (own / "data").exists():
        (own / "data").symlink_to((folder / "data").resolve())
    path = own / "train_gpt.py"
    path.write_text(program(checkout, record), encoding="utf-8")
    before = Path.cwd()
    os.chdir(own)
    try:
        report = simgpu.run(path, engine="stub", torch_version=torch, gpu=GPU, ranks=RANKS, rank=0)
    finally:
        os.chdir(before)
    (own / "report.txt").write_text(f"{report}\n", encoding="utf-8")
    return report
