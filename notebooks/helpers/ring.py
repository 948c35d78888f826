"""Plays and draws a ring all-reduce: which ranks' parts each rank has added up after each step."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from matplotlib.patches import Rectangle

from labkit import plots

Held = Sequence[Sequence[Collection[int]]]


def around(ranks: int) -> list[list[list[set[int]]]]:
    """Returns which ranks each part on each rank is the sum of, before the first step and after each of 2(ranks - 1).

    In each step a rank receives one part from its left neighbour. It adds it, and in the second half replaces its own.
    """
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    steps = [held]
    for step in range(2 * (ranks - 1)):
        held = [[set(part) for part in row] for row in held]
        for rank in range(ranks):
            part = (rank - 1 - step) % ranks
            added = held[rank][part] if step < ranks - 1 else set()
            held[rank][part] = steps[-1][rank - 1][part] | added
        steps.append(held)
    return steps


def plot(steps: Sequence[Held], about: str = ""):
    """Draws ``steps``; each holds, for each rank and each part of its buffer, the ranks whose sum that part is.

        ring.plot([[{0}, {0}], [{1}, {1}]], ...])     # two ranks, two parts, before the first step

    A part that is the sum of all ranks is green. Raises ``ValueError`` if the steps differ in ranks or parts.
    """
    ranks, parts = len(steps[0]), len(steps[0][0])
    if any(len(held) != ranks or any(len(row) != parts for row in held) for held in steps):
        raise ValueError(f"each step has {ranks} ranks with {parts} parts, as the first one has")
    everyone = set(range(ranks))
    done = [sum(set(part) == everyone for row in held for part in row) for held in steps]
    said = ", ".join(f"{count} after step {at}" for at, count in enumerate(done))
    alt = f"{ranks} ranks in a ring, each with {parts} parts of a buffer. Parts that are the sum of all ranks: {said}."
    title = f"Who holds which sum: {about}" if about else "Who holds which sum"
    figure, axes = plots.new(title, alt, xlabel=f"after step (1/{parts} of the bytes a step)", height=0.7 + 0.5 * ranks)
    width = 0.84 / parts
    for at, held in enumerate(steps):
        for rank, row in enumerate(held):
            for part, summed in enumerate(row):
                left, share = at - 0.42 + part * width, len(set(summed)) / ranks
                fill, alpha = (plots.palette.green, 1.0) if share == 1 else (plots.palette.orange, share**1.5)
                axes.add_patch(
                    Rectangle((left, rank - 0.36), width, 0.72, fc=(fill, alpha), ec=plots.palette.dark, lw=0.5)
                )
                text = "all" if share == 1 else "+".join(map(str, sorted(summed)))
                ink = "white" if share == 1 else plots.palette.dark
                axes.text(left + width / 2, rank, text, ha="center", va="center", fontsize=6, color=ink, rotation=90)
    axes.set(xlim=(-0.5, len(steps) - 0.5), ylim=(ranks - 0.5, -0.5), xticks=range(len(steps)))
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure
