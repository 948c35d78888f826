"""Figures published elsewhere, each with its provenance, and the table that compares measurements with them.

Published figures say "MB" and mean MiB. They are stored as the printed text, because its digits show the precision.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from importlib import metadata
from pathlib import Path

import pandas as pd

from labkit.gpu import current
from labkit.units import MiB, mib, verdict

NOTES = "GPU memory course notes, chapters 1 and 2 (in Chinese)"
TRAINING_NOTES = "训练过程中的显存占用分析及性能优化, notes of 2023-03-12 (in Chinese)"
CS231N = "CS231n, Convolutional Neural Networks for Visual Recognition, course notes, Stanford"
ANATOMY = "Model training anatomy, transformers documentation, Hugging Face 2023"
ONE_GPU = "Efficient Training on a Single GPU, transformers documentation, Hugging Face 2022"
COURSE_NOTES = "GPU memory course notes, chapter 4 (in Chinese)"
EFFICIENT = "Efficient Training in PyTorch, Ailing Zhang 2024, scripts of chapter 7"
BOOK = "Efficient Training in PyTorch, Ailing Zhang 2024, chapter 10"
LEAGUE = "docs/league.md: what each tool answered when the course asked it"
HOST_CODE = "PyTorch's CUDA host code under stub libraries, no GPU"
TITAN_BENCHMARK = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3"
TRACED = "Efficient Training in PyTorch, Ailing Zhang 2024, profiler traces of chapter 6, RTX 3060 Ti"


@dataclass(frozen=True)
class Figure:
    """One recorded figure of memory, in MiB as printed; an empty field means that the source does not say."""

    mib: str
    experiment: str = ""
    quantity: str = ""
    source: str = ""
    gpu: str = ""
    torch: str = ""
    note: str = ""

    def short(self) -> str:
        """Returns the figure as printed, with at most three decimals."""
        return self.mib if len(self.mib.partition(".")[2]) <= 3 else str(round(Decimal(self.mib), 3))

    def verdict(self, measured: int) -> str:
        """Returns ``"equal"``, ``"equal to N decimals"`` (those printed), or the difference of ``measured`` bytes."""
        exact = Fraction(self.mib) * MiB
        if measured == exact:
            return "equal"
        decimals = len(self.mib.partition(".")[2])
        if abs(measured - exact) * 10**decimals < MiB:  # rounded or truncated in the publication
            return f"equal to {decimals} decimals"
        return verdict(measured, round(exact))


def _figures(experiment: str, source: str, rows: dict[str, str], **where: str) -> list[Figure]:
    return [Figure(mib, experiment, quantity, source, **where) for quantity, mib in rows.items()]


def _host_code(experiment: str, quantities: tuple[str, ...], a100: str, h100: str) -> list[Figure]:
    """Returns figures of torch 2.13.0 for compute capability 8.0 (108 multiprocessors) and 9.0 (132)."""
    return [
        Figure(mib, experiment, quantity, HOST_CODE, gpu, "2.13.0")
        for gpu, row in (("A100", a100), ("H100", h100))
        for quantity, mib in zip(quantities, row.split(), strict=True)
    ]


THREE_LINEAR = "ThreeLinear, batch 10240, float32"
HALF_LINEAR = "HalfLinear(2), batch 10240, float16"
HALF_LINEAR_10 = "HalfLinear(10), batch 10240, float16"
VGG16 = "VGG16, float32"
LEAGUE_BERT = "BERT-base, sdpa, batch 32, length 512, float32, two steps of AdamW, A100-80GB"
BERT_BASE = "BERT-base, batch 32, length 512, float32"
BERT_LARGE = "bert-large with Trainer, batch 4, length 512"
ACCUMULATION = "Trainer, 512 sentences of 512 tokens, batch 4"
TOY_ACCUMULATION = "weight 1024×32, SGD, two steps of 256 samples of 32×1024"
TOY_CHECKPOINT = "Linear 1000 → 40000 → 1000 → 5 with ReLU, batch 10, two segments"
LADDER = "minGPT of gpt2-large's shape, batch 32, length 128, float32"
SHARDED = "GPT-2 small, batch 2, length 128, float32, FSDP2, rank 0 of 8"
TITAN = "Llama 3.1 8B, FSDP2, bfloat16, batch 2 of 8192 tokens a GPU, selective checkpointing"
CONTEXT = "CUDA context"

_TRAINING = ("forward adds", "after backward", "peak", "reserved")

FIGURES: tuple[Figure, ...] = (
    *_figures(
        THREE_LINEAR,
        NOTES,
        {
            "parameters": "16.015625",
            "input": "40",
            "forward adds": "168.125",
            "after backward": "168.28173828125",
            "peak": "360.2744140625",
            "AdamW adds": "32.03125",
            "inference, total": "144.140625",
        },
    ),
    *_host_code(
        THREE_LINEAR,
        _TRAINING,
        "168.125 168.28173828125 364.27880859375 442",
        "192 216.03173828125 412.02880859375 486",
    ),
    *_figures(
        HALF_LINEAR,
        TRAINING_NOTES,
        {
            "parameters": "2.0",
            "input": "20.0",
            "forward adds": "40.0",
            "after loss": "62.00048828125",
            "after backward": "44.00048828125",
            "inference adds": "0.0",
            "optimizer adds": "4.0",
        },
        note="the code there repeats the layer ten times; the figures are of two repetitions",
    ),
    *_host_code(
        HALF_LINEAR,
        _TRAINING,
        "48.125 60.25048828125 120.2509765625 142",
        "72 108.00048828125 168.0009765625 186",
    ),
    *_host_code(
        HALF_LINEAR_10,
        _TRAINING,
        "208.125 60.25048828125 280.2509765625 302",
        "232 108.00048828125 328.0009765625 346",
    ),
    *_figures(
        VGG16,
        TRAINING_NOTES,
        {
            "parameters": "528",
            "gradients": "528",
            "gradients and Adam": "1584",
            "activations of one image": "58.12",
            "activations and their gradients, one image": "116.24",
        },
        note="on paper; printed as 528 * 3 and 58.12 x 2",
    ),
    Figure("93", VGG16, "activations of one image", CS231N, note="on paper: 24M * 4 bytes, only forward"),
    *_figures(
        BERT_BASE,
        NOTES,
        {
            "parameters": "418.7295",
            "input": "0.125",
            "forward adds": "13931.34375",
            "after backward": "903.5874",
            "AdamW adds": "841.0273",
            "inference adds": "56.21875",
        },
    ),
    *_host_code(
        BERT_BASE + ", eager",
        (*_TRAINING, "inference adds", "inference peak"),
        "13931.34765625 902.83740234375 15002.357421875 15930 56.21875 1434.9794921875",
        "13955.22265625 950.83740234375 15050.107421875 15978 80.09375 1458.8544921875",
    ),
    *_host_code(
        BERT_BASE + ", sdpa",
        _TRAINING,
        "9332.34765625 903.58740234375 10056.21240234375 10182",
        "9356.22265625 951.08740234375 10103.96240234375 10230",
    ),
    *_figures(
        BERT_LARGE,
        ANATOMY,
        {"context": "1343", "model loaded": "2631", "training": "14949"},
        gpu="V100-16GB",
        note="nvidia-smi's figure: context and reserved",
    ),
    *_figures(
        BERT_LARGE,
        ONE_GPU,
        {
            "accumulation": "8681",
            "accumulation, checkpointing": "6775",
            "fp16": "13939",
            "accumulation, checkpointing, fp16": "7275",
            "Adafactor": "12295",
            "accumulation, checkpointing, fp16, Adafactor": "4847",
            "8-bit Adam": "13085",
            "accumulation, checkpointing, fp16, 8-bit Adam": "5363",
        },
        gpu="V100-16GB",
        note="nvidia-smi's figure: context and reserved; accumulation is 4 × 1",
    ),
    *_figures(
        ACCUMULATION,
        COURSE_NOTES,
        {"whole batch": "11539", "4 × 1": "7343"},
        note="the model, the GPU and the counter are not named",
    ),
    *_figures(
        TOY_CHECKPOINT,
        EFFICIENT,
        {"peak with checkpointing": "628.63671875", "peak without": "936.17431640625"},
        note="in one run, the peak not reset in between",
    ),
    *_figures(TOY_ACCUMULATION, EFFICIENT, {"peak, whole batch": "81.37548828125", "peak, 2 × 128": "49.00048828125"}),
    *_figures(
        LADDER,
        BOOK,
        {
            "original": "36272",
            "accumulation": "25194",
            "checkpointing": "15394",
            "for-loop AdamW": "13108",
            "FSDP on two GPUs": "8502",
        },
        gpu="H100",
        note="nvidia-smi's figure: context and reserved",
    ),
    *(
        Figure(
            mib, LADDER, f"{rung}, allocated peak", HOST_CODE, "H100", "2.13.0", "two steps, as chapter 17 takes them"
        )
        for rung, mib in {
            "original": "34783.501953125",
            "accumulation": "22900.34619140625",
            "checkpointing": "13863.32568359375",
            "for-loop AdamW": "11637.62646484375",
        }.items()
    ),
    *(
        Figure(mib, LEAGUE_BERT, name, LEAGUE if name != "host code" else HOST_CODE, "A100-80GB", "2.13.0")
        for name, mib in {
            "host code": "11186.02099609375",
            "MemTracker, FakeTensor": "25788.565212249755859375",
            "torch-kitsune 0.7.0": "1935.56230449676513671875",
            "MLSys·im 0.3.0": "11901.090087890625",
            "accelerate 1.15.0": "1670.59765625",
        }.items()
    ),
    *(
        Figure(mib, SHARDED, name, HOST_CODE, "A100", "2.13.0", "two steps, fused AdamW, as chapter 19 takes them")
        for name, mib in {
            "stage 3, after backward": "271.287109375",
            "stage 3, peak": "877.5546875",
            "stage 2, after backward": "270.8798828125",
            "stage 2, peak": "1166.583984375",
        }.items()
    ),
    *(
        Figure(mib, TITAN, f"4 layers, 8 GPUs, {name}", HOST_CODE, "H100", "2.13.0", "rank 0, as chapter 19b takes it")
        for name, mib in {"peak": "31543.2607421875", "reserved": "40900"}.items()
    ),
    Figure("84377.6", TITAN, "8 GPUs", TITAN_BENCHMARK, "H100, 96 GB", "2024-12-23", "printed as 82.4 GiB"),
    Figure("68608.0", TITAN, "128 GPUs", TITAN_BENCHMARK, "H100, 96 GB", "2024-12-23", "printed as 67.0 GiB"),
    Figure("1351", CONTEXT, "context", TRAINING_NOTES, "V100", note="CUDA 10.2"),
    Figure("1639", CONTEXT, "context", TRAINING_NOTES, "RTX 3090", note="CUDA 11.4"),
)


ZERO_FIGURE_1 = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}
"""The model's states on a GPU in GB (10⁹ bytes), by ZeRO stage (0 for none): 7.5 billion parameters, 64 GPUs, mixed
precision with Adam. Computed, not measured, in Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training
Trillion Parameter Models", figure 1.
"""


LARGEST_GPT = {"original": 1795, "every rung": 9183}
"""Parameters in millions of the largest GPT that trains on two GPUs of 80 GB, before and after all rungs of the memory
ladder (`BOOK`; the script is not published).
"""


@dataclass(frozen=True)
class Trace:
    """Holds the figures of a published torch.profiler trace; times are in milliseconds.

    ``total`` is the time from its first event to its last. ``kernels`` and ``copies`` are sums over the GPU's kernels
    and over its copies from the host, which are ``iterations`` copies of ``copied`` bytes each. ``batch`` is the images
    per iteration, or 0 without images. ``file`` is its name in the repository ailzhang/EfficientPyTorch,
    chapter_06_compute/traces.
    """

    name: str
    file: str
    batch: int
    iterations: int
    total: float
    kernels: float
    copies: float
    copied: int
    pinned: bool
    source: str = TRACED

    def row(self) -> dict[str, float | str]:
        """Returns the figures that are comparable between traces: per image, per byte, and as shares."""
        return {
            "batch": self.batch,
            "total (ms)": self.total,
            "an image (ms)": self.total / (self.iterations * self.batch) if self.batch else float("nan"),
            "kernels (% of total)": 100 * self.kernels / self.total,
            "copies (% of total)": 100 * self.copies / self.total,
            "copies (GB/s)": self.iterations * self.copied / self.copies / 1e6,
        }


# Images of 3 × 512 × 512 in float32; and a tensor of 4 × 32 × 32 × 1024 elements, copied ten times.
TRACES: tuple[Trace, ...] = (
    Trace("1 worker", "PROF_workers_1.json", 32, 20, 7570, 6809, 579.2, 96 * MiB, False),
    Trace("4 workers", "PROF_workers_4.json", 4, 20, 1059, 894, 66.5, 12 * MiB, False),
    Trace("pinned, non_blocking", "PROF_non_blocking.json", 4, 20, 1450, 929, 18.8, 12 * MiB, True),
    Trace("double buffering", "PROF_double_buffering.json", 4, 20, 1712, 1285, 22.8, 12 * MiB, True),
    Trace("float32, no training", "PROF_data_copy_float32.json", 0, 10, 1095, 0, 30.1, 16 * MiB, False),
    Trace("uint8, no training", "PROF_data_copy_uint8.json", 0, 10, 13, 0, 9.1, 4 * MiB, False),
)


def traces() -> pd.DataFrame:
    """Returns a table of the published traces, one per row: per image, per byte, and as shares."""
    return pd.DataFrame({trace.name: trace.row() for trace in TRACES}).T


def find(experiment: str, quantity: str, source: str = "", gpu: str = "") -> Figure:
    """Returns the one figure that matches; ``source`` and ``gpu`` narrow the choice.

    Raises ``LookupError``, with the figures of that experiment, if none or several match.
    """
    there = [figure for figure in FIGURES if figure.experiment == experiment]
    match = [
        figure
        for figure in there
        if figure.quantity == quantity and figure.source.startswith(source) and gpu in ("", figure.gpu)
    ]
    if len(match) == 1:
        return match[0]
    known = "\n".join(f"  {f.quantity}: {f.mib} MiB, {f.gpu or 'GPU not said'}, {f.source}" for f in there)
    experiments = ", ".join(dict.fromkeys(repr(figure.experiment) for figure in FIGURES))
    raise LookupError(
        f"{len(match)} figures match {quantity!r} of {experiment!r}, one was wanted; there are\n"
        + (known or f"  experiments {experiments}")
    )


def table(experiment: str = "") -> pd.DataFrame:
    """Returns a table of every figure whose experiment begins with ``experiment``, with its provenance."""
    rows = [
        {
            "experiment": figure.experiment,
            "quantity": figure.quantity,
            "recorded (MiB)": figure.short(),
            "GPU": figure.gpu or "not said",
            "torch": figure.torch or "not said",
            "source": figure.source,
            "note": figure.note,
        }
        for figure in FIGURES
        if figure.experiment.startswith(experiment)
    ]
    return pd.DataFrame(rows)


def elsewhere(rows: Iterable[tuple[Figure, int, str]], gpu: str = "") -> pd.DataFrame:
    """Returns the table "recorded elsewhere", a row per ``(figure, simulated bytes, why they differ)``.

    Its heading names the GPU of the simulated or measured bytes: ``gpu``, or the one in use by default.
    """
    frame = pd.DataFrame(
        [
            {
                "quantity": figure.quantity,
                "recorded (MiB)": figure.short(),
                "ours": mib(ours),
                "ours - recorded": figure.verdict(ours),
                "why": why,
                "source": figure.source,
            }
            for figure, ours, why in rows
        ]
    ).set_index("quantity")
    frame.index.name = frame.attrs["gpu"] = gpu or str(current())
    return frame


def clock() -> pd.DataFrame:
    """Returns how far the simulated clock is from published times of whole models: per table, models and median error.

    It reads docs/times.md, which ``python -m tools.times`` writes. The medians are of absolute errors, in whole %.
    """
    part = course_file("docs/times.md").read_text(encoding="utf-8").partition("## By table")[2].partition("\n## ")[0]
    rows = [
        [text.strip() for text in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")
    ]
    found = {row[0]: (int(row[1]), round(float(row[2].rstrip("%")))) for row in rows[2:]}
    return pd.DataFrame(found, index=["models", "median error (%)"]).T.rename_axis("published times")


def simulated_seconds(item: str) -> float:
    """Returns the simulated clock's seconds for a published time, by its name on rung 7 of docs/exactness.json.

    Raises ``LookupError`` with the known names.
    """
    results = json.loads(course_file("docs/exactness.json").read_text(encoding="utf-8"))["results"]
    times = {name: more for one in results if one["rung"] == 7 for name, *_, more in one["items"]}
    if "simulated (s)" not in times.get(item, {}):
        raise LookupError(f"no simulated time of {item!r}; there are {', '.join(map(repr, times))}")
    return times[item]["simulated (s)"]


MEGATRON_WEAK_SCALING = {1: 1.0, 2: 0.907, 4: 0.865, 8: 0.796}
"""Speed per GPU relative to one GPU, by the number of GPUs that share a model: Megatron-LM 1.0, table 1 (NVIDIA ADLR,
"MegatronLM's Supercharged V1.0", nv-adlr.github.io/MegatronLMV1). GPT-2 with 1.2, 2.0, 4.2 and 8.7 billion parameters
at batch 8, 1288, 1242, 1357 and 1508 ms per iteration (as the source prints them), on V100s of a DGX-2H.
"""

NANOTRON_3B_SPEEDS = {(2, 3): 14167.25, (4, 9): 13460.16, (8, 18): 10888.53, (16, 40): 6159.30, (32, 90): 3609.73}
"""Tokens per second and GPU, by (tensor-parallel ranks, sequences that fit), on H100s: huggingface/nanotron, comments
in scripts/scaling_benchmarks.py, the sweeps of "The Ultra-Scale Playbook" (Hugging Face 2025). Of the models in the
script, only the 3B one (28 layers, h 3072) with sequences of 4096 matches the operations per token that these comments
give (363.66 TFLOP/s at 14167.25 tokens/s).
"""

TITAN_3D = {"1F1B": (100, 82.5), "Interleaved 1F1B": (128, 72.7)}
"""Tokens per second and GPU, and GiB of the fullest GPU: table 5 of the page that `TITAN_BENCHMARK` names. Llama 3.1
405B on 512 H100s with 96 GB (FSDP 8, TP 8, PP 8), 32 sequences of 8192 tokens per data-parallel group, full
checkpointing, torch.compile, Float8 and AsyncTP. Stages and micro-batches are the defaults of the commit that the page
names (torchtitan/parallelisms/pipelining_utils.py): as many micro-batches as stages.
"""

TITAN_2D = (829, 71.9)
"""Tokens per second and GPU, and GiB, of table 4 without AsyncTP: Llama 3.1 70B, 256 GPUs (FSDP 32, TP 8), 16 sequences
of 8192 tokens.
"""

TITAN_CONTEXT = {1: 83.9, 2: 84.2, 4: 84.0, 8: 84.5}
"""GiB by the number of GPUs that share a sequence of 32,768 tokens times that number: table 2 of the same page. Llama
3.1 8B on 8 GPUs, the rest FSDP, one sequence, full checkpointing, torch.compile and Float8.
"""


def course_file(name: str) -> Path:
    """Returns the path of a file or folder of the course; `name` is relative to its root ("notebooks/data/alice.txt").

    It searches the clone that contains labkit, the clone around the current folder, and the files installed with the
    package simgpu (`share/simgpu`, see pyproject.toml). Raises FileNotFoundError, which says what to do, if none of
    them has the file.
    """
    here = Path.cwd()
    clones = (folder for folder in (Path(__file__).parents[1], here, *here.parents) if (folder / "course.py").is_file())
    for found in (*(folder / name for folder in clones), *_installed(name)):
        if found.exists():
            return found
    raise FileNotFoundError(
        f"this cell reads {name} of the course's folder, which is not installed with the package: "
        "run the notebook in a clone of the course"
    )


def _installed(name: str) -> list[Path]:
    try:
        files = metadata.files("simgpu") or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(one.locate())) for one in files if one.as_posix().endswith(f"share/simgpu/{name}")]
