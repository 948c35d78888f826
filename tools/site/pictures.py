"""The pictures of the site's pages, each drawn twice: for a light page and for a dark one.

A picture is made of the numbers on its page (or of the file that the page is written from), and of nothing else. The
colours are those of labkit.plots, which itself needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from tools.site import tables

BLUE, ORANGE, GREEN, SKY, PURPLE, YELLOW = "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#CC79A7", "#E69F00"
DARKER, LIGHTER = "#2b2b2b", "#d8dce2"  # the ink on a light and on a dark page
WIDTH = 6.2  # inches; on a telephone this becomes the page's width


@dataclass(frozen=True)
class Picture:
    """`draw` gets empty axes. `alt` says in words what is to be seen. `height` in inches."""

    name: str
    alt: str
    draw: Callable[[Axes], None]
    height: float = 3.2

    def write(self, folder: Path) -> str:
        """Draw it into the folder, and give the Markdown that shows it."""
        folder.mkdir(parents=True, exist_ok=True)
        shown = []
        for mode, ink in (("light", DARKER), ("dark", LIGHTER)):
            with pyplot.rc_context(_style(ink)):
                figure, axes = pyplot.subplots(figsize=(WIDTH, self.height), layout="constrained")
                self.draw(axes)
                path = folder / f"{self.name}-{mode}.svg"
                figure.savefig(path, transparent=True, metadata={"Date": None})
                pyplot.close(figure)
            shown.append(
                f"```{{image}} {folder.name}/{path.name}\n:alt: {self.alt}\n:class: only-{mode}\n:width: 100%\n```\n"
            )
        return "\n".join(shown)


def _style(ink: str) -> dict:
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor")
    look = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
    grid = {"axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.25, "grid.color": ink}
    return {**dict.fromkeys(names, ink), **look, **grid, "svg.hashsalt": "site", "axes.titlesize": 9.5}


def techniques(page: str) -> list[Picture]:
    """What each technique does to the peak, and at what price in time, of docs/techniques.md."""
    rows = [row for _, found in tables.read(page) for row in found if "peak of the step (MiB)" in row]
    timed = [row for row in rows if "×" in row["step time"]]

    def memory(axes: Axes) -> None:
        ordered = sorted(rows, key=lambda row: tables.number(row["memory"]), reverse=True)
        values = [tables.number(row["memory"]) for row in ordered]
        drawn = axes.barh(
            [_short(row["method"]) for row in ordered], values, color=[BLUE if v < 0 else ORANGE for v in values]
        )
        axes.bar_label(drawn, labels=[f"{value:+.0f} %" for value in values], padding=3, fontsize=8)
        axes.set(xlabel="change of the step's peak", title="What it does to the peak", xlim=(-118, 45))
        axes.xaxis.set_major_formatter(PercentFormatter())
        axes.grid(axis="y", visible=False)

    def price(axes: Axes) -> None:
        axes.axvline(1, color=ORANGE, lw=1)
        for row in timed:
            axes.plot(tables.number(row["step time"]), tables.number(row["memory"]), "o", color=BLUE, ms=5, alpha=0.7)
        extremes = {min(timed, key=key)["method"] for key in (_time, lambda row: -_time(row), _saved)}
        for row in (row for row in timed if row["method"] in extremes):
            left = _time(row) > 1.5
            axes.annotate(
                _short(row["method"]), (_time(row), _saved(row)), xytext=(5 if left else 6, -12 if left else 4),
                textcoords="offset points", ha="right" if left else "left", fontsize=8,
            )  # fmt: skip
        axes.set(
            xscale="log", xlabel="step time with it / without it", ylabel="change of the peak", title="Memory and time"
        )
        axes.set_xticks([0.05, 0.1, 0.2, 0.5, 1, 2, 3], labels=["0.05", "0.1", "0.2", "0.5", "1", "2", "3"])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(PercentFormatter())

    best, worst = min(rows, key=_saved), max(rows, key=_saved)
    said = f"from {best['memory']} ({best['method']}) to {worst['memory']} ({worst['method']})"
    bars = f"Bars: the change of the step's peak by each of {len(rows)} measured methods, {said}."
    slower = f"{sum(_time(row) > 1.02 for row in timed)} of {len(timed)} methods cost more than 2 % of time"
    points = f"Points: change of the peak over step time; {slower}."
    return [
        Picture("techniques", bars, memory, 0.21 * len(rows) + 1),
        Picture("techniques-price", points, price),
    ]


def _time(row: dict) -> float:
    return tables.number(row["step time"])


def _saved(row: dict) -> float:
    return tables.number(row["memory"])


def _short(text: str, most: int = 44) -> str:
    return text if len(text) <= most else text[: most - 1].rsplit(" ", 1)[0].rstrip(",(") + " …"


def league(page: str) -> list[Picture]:
    """Median and worst error of each estimator, of docs/league.md."""
    rows = next(found for _, found in tables.read(page) if "median error" in found[0])[::-1]

    def draw(axes: Axes) -> None:
        names = [row["tool"].replace("`", "").split(" (")[0] for row in rows]
        worst = [abs(tables.number(row["worst error"])) for row in rows]
        axes.barh(names, worst, color=SKY, alpha=0.6, label="worst error, without its sign")
        axes.barh(
            names, [tables.number(row["median error"]) for row in rows], color=BLUE, height=0.4, label="median error"
        )
        labels = [f"{row['median error']}, worst {row['worst error']}" for row in rows]
        for at, (width, label) in enumerate(zip(worst, labels, strict=True)):
            axes.annotate(label, (width, at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set(xlabel="error of the allocated peak", xlim=(0, 1.5 * max(worst)))
        axes.xaxis.set_major_formatter(PercentFormatter())
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower right")

    said = "; ".join(f"{row['tool']}: {row['median error']}, worst {row['worst error']}" for row in reversed(rows))
    return [Picture("league", f"Bars: median and worst error of each tool. {said}.", draw, 0.36 * len(rows) + 1)]


def times(page: str) -> list[Picture]:
    """How far the clock is off, by table of published times, of docs/times.md."""
    rows = tables.find(page, "By table")[::-1]

    def draw(axes: Axes) -> None:
        values = [tables.number(row["median absolute error"]) for row in rows]
        axes.barh([row["table"].replace(", ", ",\n", 1) for row in rows], values, color=BLUE)
        for at, (value, row) in enumerate(zip(values, rows, strict=True)):
            axes.annotate(
                f"{row['median absolute error']} (worst {row['worst'].split(',')[0]})", (value, at), xytext=(4, 0),
                textcoords="offset points", va="center", fontsize=8,
            )  # fmt: skip
        axes.set(xlabel="median absolute error of the clock", xlim=(0, 1.5 * max(values)))
        axes.xaxis.set_major_formatter(PercentFormatter())
        axes.grid(axis="y", visible=False)

    said = "; ".join(f"{row['table']}: {row['median absolute error']}" for row in reversed(rows))
    return [
        Picture("times", f"Bars: the clock's median absolute error by table. {said}.", draw, 0.45 * len(rows) + 0.8)
    ]


def _shares(name: str, what: str, rows: list[tuple[str, list[int]]], kinds: list[tuple[str, str]]) -> Picture:
    """Bars of shares: for each row so many of each kind; `kinds` are names and colours."""

    def draw(axes: Axes) -> None:
        labels, left = [label for label, _ in rows], [0.0] * len(rows)
        for at, (kind, color) in enumerate(kinds):
            widths = [100 * counts[at] / sum(counts) for _, counts in rows]
            axes.barh(labels, widths, left=left, color=color, label=kind)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for at, (_, counts) in enumerate(rows):
            axes.annotate(f"{counts[0]} of {sum(counts)}", (101, at), va="center", fontsize=8, annotation_clip=False)
        axes.set(xlim=(0, 118), xticks=range(0, 101, 25), xlabel=what)
        axes.xaxis.set_major_formatter(PercentFormatter())
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.42, 1), ncols=len(kinds), fontsize=8)

    said = "; ".join(f"{label}: {counts[0]} of {sum(counts)}" for label, counts in reversed(rows))
    return Picture(name, f"Bars: {kinds[0][0]}. {said}.", draw, 0.3 * len(rows) + 1.1)


def operators(page: str) -> list[Picture]:
    """The outcomes of each pass of PyTorch's own samples, of docs/operators.md."""
    columns = {"equal": GREEN, "left out by name": YELLOW, "refused": SKY, "differ": ORANGE, "another error": PURPLE}
    rows = [
        (f"{row['pass'].removesuffix('-small')}, {row['GPU']}", [int(row[name]) for name in columns])
        for row in reversed(tables.find(page, "Passes"))
    ]
    return [_shares("operators", "share of what can be compared", rows, list(columns.items()))]


def model_zoo(page: str) -> list[Picture]:
    """How many models of each library are equal, of docs/model_zoo.md."""
    found = next(found for _, found in tables.read(page) if "equal" in found[0] and "of" in found[0])
    rows = [
        (f"{row['family']}, {row['run']}", [int(row["equal"]), int(row["of"]) - int(row["equal"])])
        for row in reversed(found)
    ]
    return [
        _shares("model-zoo", "share of the models that were compared", rows, [("equal", GREEN), ("not equal", ORANGE)])
    ]


PAGES = {"techniques": techniques, "league": league, "times": times, "operators": operators, "model_zoo": model_zoo}


def into(page: str, name: str, folder: Path) -> str:
    """The page of docs/ with its pictures before its first section; as it is if it has none."""
    if name not in PAGES:
        return page
    shown = "\n".join(picture.write(folder) for picture in PAGES[name](page))
    head, section, rest = page.partition("\n## ")
    return f"{head}\n{shown}{section}{rest}"


def ladder(results: list[dict]) -> list[Picture]:
    """The pictures of the page of exactness: peaks, and times, from the results of docs/exactness.json."""
    peaks = [
        (found["peak"], found["simulated peak"])
        for result in results
        for *_, found in result["items"]
        if result["rung"] == 3 and "simulated peak" in found
    ]
    equal = sum(theirs == ours for theirs, ours in peaks)
    clock = [
        (result["result"], found["published (s)"], found["simulated (s)"])
        for result in results
        for *_, found in result["items"]
        if {"published (s)", "simulated (s)"} <= set(found)
    ]

    def draw_peaks(axes: Axes) -> None:
        mib = [theirs / 2**20 for theirs, _ in peaks]
        axes.plot(mib, [100 * (ours / theirs - 1) for theirs, ours in peaks], "o", ms=4, alpha=0.3, color=BLUE)
        axes.set(xscale="log", ylim=(-10, 10), xlabel="the oracle's allocated peak (MiB)", ylabel="ours, off by")
        axes.yaxis.set_major_formatter(PercentFormatter())
        axes.set_title(f"{equal} of {len(peaks)} peaks equal to the byte")

    def draw_times(axes: Axes) -> None:
        least, most = min(min(p, s) for _, p, s in clock), max(max(p, s) for _, p, s in clock)
        axes.plot([least, most], [least, most], color=ORANGE, lw=1, label="equal")
        axes.plot([p for _, p, _ in clock], [s for *_, s in clock], "o", ms=5, alpha=0.7, color=BLUE, label="a program")
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="published (s)",
            ylabel="simulated (s)",
            title="Published times, and the clock's",
        )
        axes.legend(loc="upper left")

    within = sum(abs(ours / theirs - 1) <= 0.15 for _, theirs, ours in clock)
    flat = f"Points: {equal} of {len(peaks)} simulated peaks lie at 0 % difference to the oracle's."
    near = f"Points: simulated over published times of {len(clock)} programs, {within} of them within 15 %."
    return [Picture("peaks", flat, draw_peaks, 2.8), Picture("clock", near, draw_times)]


def results(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["results"]
