"""Runs notebooks as readers do, and reports each cell that fails or contradicts the text.

    python -m tools.notebooks 03                                  once, on the course's GPU
    python -m tools.notebooks 03 03b --gpu T4 --gpu H100 --twice --after-exercises
    python -m tools.notebooks 03 --set batch=1000                 with another size
    python -m tools.notebooks --every-way                         every notebook in every way below

Ways: on a simulated GPU of any name (`--gpu`; `--every-gpu` takes those of GPUS); each cell twice in a row (`--twice`);
everything once more after the exercises and their solutions have run (`--after-exercises`); with wrong answers and wild
guesses (`--wrong-answers`); with another size, given (`--set NAME=VALUE`) or each that the notebook invites the reader
to try (`--sizes`): a line `batch = 10_240  # try 1_000, 32_768`.

Reported is a cell that raises (unless it is tagged `raises-exception`), and one whose verdicts are not those of the
stored outputs: True, False, equal, Correct and the like, in their order. Where a verdict may change, because the cell
says what it depends on, the cell is tagged `varies`. Exits with 1 if anything is reported.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import nbclient
import nbformat

from tools import minutes

GPUS = ("T4", "RTX 3090", "RTX 4090", "H100", "B200")
VERDICT = re.compile(r"\b(True|False|equal|differs?|unequal|Correct|OK|FAIL|nan|inf)\b")
TRY = re.compile(r"^(\w+) = (\S+)  # .*?\btry ([\d_]+(?:(?:,| or) [\d_]+)*)", re.MULTILINE)
EMPTY = re.compile(r"^((?:answer|guess)\w*) = \.\.\.", re.MULTILINE)
ONE_GPU = re.compile(r"\buse_gpu\(([^)]*)\)")
WRONG = "12345"
SECONDS = 900  # a cell may take


@dataclass(frozen=True)
class Way:
    """How a notebook is run. `gpu`: a simulated one's name, or None for the course's. `sizes`: names and new values."""

    gpu: str | None = None
    twice: bool = False
    after_exercises: bool = False
    wrong_answers: bool = False
    sizes: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [self.gpu or "the course's GPU", *(f"{name} = {value}" for name, value in self.sizes.items())]
        parts += ["each cell twice"] if self.twice else []
        parts += ["again after the exercises"] if self.after_exercises else []
        parts += ["wrong answers"] if self.wrong_answers else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Finding:
    """A code cell, by its number, that raised or contradicts its stored outputs."""

    notebook: str
    way: Way
    cell: int
    run: str
    what: str
    source: str

    def __str__(self) -> str:
        line = self.source.strip().splitlines()[0] if self.source.strip() else ""
        return f"{self.notebook} ({self.way}), code cell {self.cell}{self.run}: {self.what}\n    {line}"


def run(path: Path, way: Way) -> list[Finding]:
    """Run the notebook at `path` in that way; what is to be reported. Raises ValueError for a size it does not have."""
    notebook = nbformat.read(path, as_version=4)
    stored = [cell for cell in notebook.cells if cell.cell_type == "code"]
    try:
        sources = changed([cell.source for cell in stored], way)
    except ValueError as error:
        raise ValueError(f"{path.name} {error}") from None
    plan = list(_plan(len(stored), way))
    cells = [nbformat.v4.new_code_cell(sources[number]) for number, _ in plan]
    executed = execute(nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata), way.gpu, path.parent)
    found = []
    for (number, again), cell in zip(plan, executed.cells, strict=True):
        for what in judge(stored[number], cell.outputs):
            found.append(Finding(path.stem, way, number + 1, again, what, stored[number].source))
    return found


def execute(notebook, gpu: str | None, folder: Path):
    """The notebook after a run in a kernel of its own; errors are kept as outputs."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("LABKIT_GPU", None)
    if gpu is not None:
        environment["LABKIT_GPU"] = gpu
    client = nbclient.NotebookClient(
        notebook,
        timeout=SECONDS,
        startup_timeout=SECONDS,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute(env=environment)


def changed(sources: list[str], way: Way) -> list[str]:
    """The sources of the cells as this way has them; a size is set in the first line that sets it."""
    sources = [EMPTY.sub(rf"\1 = {WRONG}", source) if way.wrong_answers else source for source in sources]
    for name, value in way.sizes.items():
        line = re.compile(rf"^{re.escape(name)} = [^#\n]*[^#\s]", re.MULTILINE)
        where = next((number for number, source in enumerate(sources) if line.search(source)), None)
        if where is None:
            raise ValueError(f"has no line {name} = ...")
        start, end = line.search(sources[where]).span()
        sources[where] = f"{sources[where][:start]}{name} = {value}{sources[where][end:]}"
    return sources


def judge(stored, outputs) -> Iterator[str]:
    """What is wrong with the outputs of a cell beside the stored ones."""
    tags = stored.metadata.get("tags", [])
    errors = [output for output in outputs if output.output_type == "error"]
    if errors and "raises-exception" not in tags:
        yield f"{errors[0].ename}: {(errors[0].evalue.splitlines() or [''])[0]}"
        return
    if "varies" in tags or "nbval-ignore-output" in tags:
        return
    before, after = verdicts(stored.outputs), verdicts(outputs)
    if before != after:
        yield f"verdicts are {' '.join(after) or 'gone'}; stored are {' '.join(before) or 'none'}"


def verdicts(outputs: Iterable) -> list[str]:
    """The verdicts that outputs say, in their order; what a figure says of itself is left out."""
    texts = []
    for output in outputs:
        data = output.get("data", {})
        if "image/png" not in data and output.get("name") != "stderr":
            texts.append("".join(output.get("text", "") or data.get("text/plain", "")))
    return VERDICT.findall("".join(texts))


def invited(path: Path) -> list[dict[str, str]]:
    """The sizes that a notebook invites the reader to try, one at a time."""
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    hits = [hit for source in sources for hit in TRY.findall(source)]
    return [{name: value} for name, _, values in hits for value in re.findall(r"[\d_]+", values)]


def every_way(path: Path) -> list[Way]:
    """All that is asked of a notebook: every GPU; each cell twice, and again after the exercises, on the course's GPU
    and on the smallest; its other sizes on both; wrong answers.

    A notebook about one GPU, which `use_gpu(..., only_simulated=True)` gives on every machine, has no other GPUs.
    """
    smallest, *others = (None,) if about_one_gpu(path) else GPUS
    both = dict.fromkeys((None, smallest))
    ways = [Way(gpu, twice=True, after_exercises=True) for gpu in both]
    ways += [Way(gpu) for gpu in others]
    ways += [Way(gpu, sizes=sizes) for sizes in invited(path) for gpu in both]
    return [*ways, Way(wrong_answers=True)]


def about_one_gpu(path: Path) -> bool:
    """Whether the notebook's own GPU, its first `use_gpu`, is the same whatever the reader asks for."""
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    calls = ONE_GPU.findall("\n".join(sources))
    return bool(calls) and "only_simulated=True" in calls[0]


def _plan(cells: int, way: Way) -> Iterator[tuple[int, str]]:
    """The numbers of the cells in the order in which they are run, with a word on which run it is."""
    for number in range(cells):
        yield number, ""
        if way.twice:
            yield number, ", second time"
    if way.after_exercises:
        yield from ((number, ", after the exercises") for number in range(cells))


def chosen(names: list[str]) -> list[Path]:
    """Notebooks by number, name or path; all without any. Raises ValueError for a name that fits none."""
    everything = sorted(minutes.NOTEBOOKS.glob("*.ipynb"))
    found = []
    for name in names:
        fit = [path for path in everything if name in (minutes.key(path), path.stem, path.name) or Path(name) == path]
        fit = fit or ([Path(name)] if name.endswith(".ipynb") and Path(name).exists() else [])
        if not fit:
            raise ValueError(f"no notebook is called {name}; there are {', '.join(map(minutes.key, everything))}")
        found += fit
    return found or everything


def ways(path: Path, options) -> list[Way]:
    """The ways that the command line asks for."""
    if options.every_way:
        return every_way(path)
    sizes = dict(pair.split("=", 1) for pair in options.set)
    base = Way(None, options.twice, options.after_exercises, options.wrong_answers, sizes)
    gpus = [*options.gpu, *(GPUS if options.every_gpu else ())] or [None]
    all_sizes = [sizes, *({**sizes, **more} for more in (invited(path) if options.sizes else ()))]
    return [replace(base, gpu=gpu, sizes=one) for gpu in gpus for one in all_sizes]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools.notebooks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebook", nargs="*", help="a number (03b), a name, or a path; all without one")
    parser.add_argument("--gpu", action="append", default=[], metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    for flag in ("every-gpu", "twice", "after-exercises", "wrong-answers", "sizes", "every-way"):
        parser.add_argument(f"--{flag}", action="store_true")
    options = parser.parse_args(arguments)
    if bad := [pair for pair in options.set if "=" not in pair]:
        parser.error(f"--set wants NAME=VALUE, e.g. batch=1000; given: {bad[0]}")
    try:
        plan = [(path, way) for path in chosen(options.notebook) for way in ways(path, options)]
        total = 0
        for path, way in plan:
            found = run(path, way)
            total += len(found)
            print(f"{path.stem} ({way}): {len(found) or 'nothing'} to report", flush=True)
            print(*found, sep="\n", end="\n" if found else "", flush=True)
    except ValueError as error:
        parser.error(str(error))
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
