"""docs/model_zoo.md: what became of each model of the zoo; `zoo --page` writes it.

The results lie beside it, in docs/model_zoo.json: by the name of an entry and the GPU, "equal", or what it differs in,
or why it was set apart.
"""

from __future__ import annotations

import json
from collections import defaultdict

from tools.oracle.run import ROOT
from tools.oracle.zoo import families

RESULTS = ROOT / "docs" / "model_zoo.json"
PAGE = ROOT / "docs" / "model_zoo.md"
EQUAL = "equal"
HEAD = """# The model zoo

Models of other people's libraries, run on the simulated GPU and on [the oracle](oracle.md), PyTorch's CUDA host code
under stub libraries: two training steps with clipped gradients and AdamW, and an evaluation. *Equal* means the same
events of the allocator with the same sizes, and the same counters of `memory_stats()` at every stage. This page is
written by `python -m tools.oracle zoo --page`; a run that was not made is not on it.

A program that decides by values runs with `values=True`, and the oracle is given what it reads. Convolutions run
without cuDNN, whose workspaces can be measured only on a GPU.
"""


def note(found: dict[str, str | None], gpu: str, version: str) -> None:
    """Adds results by the name of the entry, None for one that is equal, else the cause; and writes the page."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name, cause in found.items():
        stored.setdefault(name, {})[gpu] = {"torch": version, "result": EQUAL if cause is None else cause}
    RESULTS.write_text(json.dumps(dict(sorted(stored.items())), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(text(stored), encoding="utf-8")


def text(stored: dict[str, dict]) -> str:
    """The page."""
    groups: dict[tuple[str, str, str], dict[str, str]] = defaultdict(dict)
    for name, by_gpu in stored.items():
        family, model, rest = name.removeprefix(families.PREFIX).split("-", 2)
        for gpu, one in by_gpu.items():
            groups[family, rest, f"{gpu}, torch {one['torch']}"][model] = one["result"]
    parts = [HEAD, "| family | run | on | equal | of |\n|---|---|---|---|---|"]
    parts += [
        f"| {family} | {run} | {on} | {sum(result == EQUAL for result in results.values())} | {len(results)} |"
        for (family, run, on), results in sorted(groups.items())
    ]
    for (family, run, on), results in sorted(groups.items()):
        parts.append(f"\n## {family}, {run}, {on}\n")
        equal = sorted(model for model, result in results.items() if result == EQUAL)
        if equal:
            parts.append("Equal: " + ", ".join(equal) + ".")
        others = {model: result for model, result in sorted(results.items()) if result != EQUAL}
        if others:
            parts.append("\n| model | what it differs in, or why it was set apart |\n|---|---|")
            parts += [f"| {model} | {result.replace('|', '/')} |" for model, result in others.items()]
    return "\n".join(parts) + "\n"
