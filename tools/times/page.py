"""docs/times.md, from the published rows and the clock's times in docs/times.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

from tools.times.rows import TABLES, Row, rows

DOCS = Path(__file__).parents[2] / "docs"
FILE, PAGE = DOCS / "times.json", DOCS / "times.md"
HEAD = """\
# The clock beside published times

The simulated GPU's times are estimates: operations and bytes counted, over the rates that large products reach
([simgpu/timing/reached.py](../simgpu/timing/reached.py), measured by others, card by card) and shares of the other
rates of the datasheets ([simgpu/timing/rates.py](../simgpu/timing/rates.py) names the source of each). Here they stand
beside {rows} rows of timm's published tables (images per second of whole models, automatic mixed precision in
float16), which somebody else measured. An error is the clock's time over the published one, less 1: +10 % is a clock
that is too slow.
No constant was fitted to any row. One rule was settled with a table in view: that convolutions of single pixels take
contiguous images as they are ([layout_changes.py](../simgpu/modes/layout_changes.py)), with the RTX 4090's contiguous
table; so the RTX 5090's is the one that is kept out. `python -m tools.times` writes this page;
`python -m tools.times run FOLDER` runs the models again ([tools/times](../tools/times/rows.py)), with timm in a folder
of its own.

Source of the published rows: repository huggingface/pytorch-image-models, `results/benchmark-*.csv`, Apache License
2.0. Times of other programs (nanoGPT, transformers' BERT, a GPT-2 and its ladder of speed) are on the page of
[exactness](exactness.json), which [chapter 24](../notebooks/24_how_exact_is_this.ipynb) shows.
"""
WHY = """\
## Why it is off where it is off

- **Grouped convolutions** (1 < groups < channels) are counted by the tiles that their groups fill: CUTLASS's are at
  least 64 columns wide. RegNets' training with torch 1.12 takes two to five times as long as that: which kernels cuDNN
  8.3 had for groups of 24 or 112 channels is not published.
- **Depthwise convolutions** run without Tensor Cores. In training with torch 1.12 they took longer than their
  operations and bytes do; that is not counted. No published table of training with a recent torch was found.
- **Norms in float32 under autocast** (ConvNeXt, `resnet50_gn`) take 20 to 45 % too long on the clock, and twice as long
  with contiguous images: casts, norms and changes of layout are counted as a kernel each, as PyTorch launches them.
  timm has a switch for norms in half precision (`--fast-norm`); the tables do not say whether it was on.
- **The RTX 5090** (torch 2.9) is 10 to 20 % slower in the published rows than on the clock, transformers and
  convolutions alike, although its products reach on the clock what others measured. The cause was not found.
- **Compiled models**: the time is that of the kernels that inductor would fuse
  ([simgpu/modes/fusion.py](../simgpu/modes/fusion.py)), and convolutions have channels last. What inductor gains by
  trying kernels is not counted.
"""


def stored() -> dict[str, float]:
    """The clock's seconds of a step, by a row's name."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def error(row: Row, found: dict[str, float]) -> float:
    """How far the clock is from the published time: 0.1 is 10 % too long."""
    return found[row.name] / row.seconds - 1


def goals(kept: list[Row], found: dict[str, float]) -> dict[str, float]:
    """The median of the absolute errors of inference, training, and of the tables that were kept out of all choices."""
    kinds: dict[str, Callable[[Row], bool]] = {
        "inference": lambda row: not (TABLES[row.table].training or TABLES[row.table].compiled or _is_out(row)),
        "training": lambda row: TABLES[row.table].training,
        "kept out": _is_out,
    }
    errors = {name: [abs(error(row, found)) for row in kept if of(row)] for name, of in kinds.items()}
    return {name: median(found) for name, found in errors.items() if found}


def _is_out(row: Row) -> bool:
    return TABLES[row.table].held_out


def page() -> str:
    """Its text."""
    found = stored()
    kept = [row for row in rows() if row.name in found]
    tables = [table for table in TABLES if any(row.table == table for row in kept)]
    reached = goals(kept, found)
    parts = [
        HEAD.format(rows=len(kept)),
        "## By table\n",
        _table(
            ["table", "rows", "median absolute error", "median", "worst"],
            ([_named(table), *_summary([row for row in kept if row.table == table], found)] for table in tables),
        ),
        f"The goals were 8 % for inference and 12 % for training: {reached['inference']:.1%} and "
        f"{reached['training']:.1%} are reached; {reached['kept out']:.1%} on what was kept out of all choices.\n",
        "## By kind of model\n",
        *(
            f"### {title}\n\n" + _by_kind([row for row in kept if row.table in chosen], found)
            for title, chosen in _chapters(tables)
        ),
        WHY,
        "## Every row\n",
        _table(
            ["table", "model", "images", "batch", "published (ms)", "clock (ms)", "error"],
            (
                [
                    _named(row.table),
                    row.model,
                    f"{row.size}²",
                    str(row.batch),
                    f"{1e3 * row.seconds:.1f}",
                    f"{1e3 * found[row.name]:.1f}",
                    f"{error(row, found):+.1%}",
                ]
                for row in kept
            ),
        ),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _chapters(tables: list[str]) -> list[tuple[str, list[str]]]:
    parts: dict[str, list[str]] = {}
    for name in tables:
        table = TABLES[name]
        title = "Training" if table.training else "Inference, compiled" if table.compiled else "Inference"
        parts.setdefault("Kept out of all choices" if table.held_out else title, []).append(name)
    return list(parts.items())


def _named(table: str) -> str:
    return TABLES[table].what + (" (kept out)" if TABLES[table].held_out else "")


def _by_kind(kept: list[Row], found: dict[str, float]) -> str:
    kinds = dict.fromkeys(row.kind for row in kept)
    return _table(
        ["kind", "rows", "median absolute error", "median", "worst"],
        ([kind, *_summary([row for row in kept if row.kind == kind], found)] for kind in kinds),
    )


def _summary(kept: list[Row], found: dict[str, float]) -> list[str]:
    errors = [error(row, found) for row in kept]
    worst = max(kept, key=lambda row: abs(error(row, found)))
    return [
        str(len(kept)),
        f"{median(map(abs, errors)):.1%}",
        f"{median(errors):+.1%}",
        f"{error(worst, found):+.1%}, {worst.model}",
    ]


def _table(head: list[str], body: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
