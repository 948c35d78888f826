"""The league table as text: docs/league.md, and the short table of README.md."""

from __future__ import annotations

from collections import Counter

START, END = "<!-- league: written by python -m benchmarks.league -->", "<!-- league: end -->"


def short(found: dict) -> str:
    """The README's table, a row a tool."""
    lines = [
        "| tool | answered | median error | worst error | false *fits* | false *does not fit* | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + [_row(tool, found) for tool in found["tools"].values()])


def readme(text: str, found: dict) -> str:
    """README.md's text with the table between its marks replaced."""
    before, rest = text.split(START)
    return f"{before}{START}\n\n{short(found)}\n\n{END}{rest.split(END)[1]}"


def long(found: dict) -> str:
    """docs/league.md."""
    return "\n\n".join([_head(found), short(found), _notes(found), _by_workload(found), _refusals(found)]) + "\n"


def _row(tool: dict, found: dict) -> str:
    name = f"{tool['title']} {tool['version']}".strip()
    row = tool["score"]
    if row is None:
        return f"| {name} | not asked | | | | | |"
    cells = [
        f"{row['answered']} of {len(found['workloads'])}",
        "" if row["median error %"] is None else f"{row['median error %']:.1f} %",
        "" if row["worst error %"] is None else f"{row['worst error %']:+.1f} %".replace("+0.0", "0.0"),
        f"{row['false fits']} of {row['verdicts']}",
        str(row["false does not fit"]),
        "" if row["seconds"] is None else f"{row['seconds']:.2f}",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def _head(found: dict) -> str:
    made = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return f"""# The league table

Estimators that run without a GPU, on {len(found["workloads"])} workloads and {len(found["gpus"])} GPUs
({", ".join(found["gpus"])}), against PyTorch's own CUDA host code under stub libraries ([the oracle](oracle.md):
{made}). No figure here is a measurement on a GPU. `python -m benchmarks.league` writes this page.

The quantity is the peak of *allocated* bytes over two training steps, the first of which makes the optimizer's
states, and whether those steps *fit* the GPU. Convolutions and LSTMs run without cuDNN, whose workspaces can be
measured only on a GPU. The workloads were chosen by this project, and none was excluded because of its answers, but
many of the simulated GPU's rules were written against the same oracle.

An error is relative to the oracle's peak, where that did not run out of memory. The median is of its absolute value,
and of the GPUs the one counts where the tool is furthest off. A *false fits* says that a workload fits a GPU on which
the oracle runs out of memory, and a *false does not fit* the opposite, and both count pairs of workload and GPU.
Seconds are the median processor time of an answer on the machine that wrote this page, without imports, and the
simulated GPU needs this time once per GPU."""


def _notes(found: dict) -> str:
    lines = ["## What each tool is, and what it says itself that it leaves out", "", "| tool | limits |", "|---|---|"]
    lines += [f"| {tool['title']} | {tool['limits']} |" for tool in found["tools"].values()]
    rule = (
        "A tool with a rule of its own for *fits* is taken at its word (torch-kitsune, MLSys·im), and the simulated "
        "GPU runs out of memory or does not. The figures of the others are compared with the GPU's memory "
        "without the CUDA context."
    )
    return "\n".join([*lines, "", rule])


def _by_workload(found: dict) -> str:
    tools = [tool for tool in found["tools"].values() if tool["score"] is not None]
    gpu = "A100-80GB"
    lines = [
        f"## By workload, {gpu}",
        "",
        "The oracle's peak in bytes, and each tool's error. "
        "A dash means that a tool gave no answer, or that the oracle runs out of memory.",
        "",
        f"| workload | oracle | {' | '.join(tool['title'] for tool in tools)} |",
        "|---" * (len(tools) + 2) + "|",
    ]
    for name, peaks in found["workloads"].items():
        true = peaks[gpu]
        cells = [_cell(tool["answers"][name]["peak"].get(gpu), true) for tool in tools]
        lines.append(f"| {name} | {'out of memory' if true is None else f'{true:,}'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(peak: float | None, true: int | None) -> str:
    if peak is None or true is None:
        return "–"
    return "0" if peak == true else f"{100 * (peak / true - 1):+.1f} %"


def _refusals(found: dict) -> str:
    lines = ["## What was not answered, and why", "", "| tool | why | workloads |", "|---|---|---|"]
    for tool in found["tools"].values():
        said = Counter(answer["refused"] for answer in tool["answers"].values() if answer["refused"])
        lines += [f"| {tool['title']} | {why.replace('|', ' ')} | {count} |" for why, count in said.items()]
    return "\n".join(lines)
