"""Draws what has no measured axis: a training step with what it saves, a decision tree, and the pages of a KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit import plots

SAVES = {"input": (0,), "output": (1,), "both": (0, 1), "nothing": ()}
"""For a word that says what an operator saves, the tensors as steps from its input."""

CHECKS = (
    ("Is much more reserved than allocated?", "yes"),
    ("Does the optimizer's step peak?", "yes"),
    ("So backward peaks. What is largest then?", ""),
)
"""The questions of `decision_tree`, from the first to the last, each with the answer that leads to its first leaf."""
LEAVES = (
    (0, "", "Fragmentation", "expandable_segments (02b), then fewer different lengths (08b)"),
    (1, "", "Optimizer", "fused AdamW (12), 8-bit states (12), states on the CPU (14)"),
    (2, "logits", "Logits", "smaller micro-batches (09), loss in chunks (08b)"),
    (2, "scores", "Attention", "SDPA instead of eager attention (08)"),
    (2, "layers", "Activations", "bf16 (11), micro-batches (09), checkpointing (10), offload (14)"),
    (2, "the model", "Weights and states", "bf16 weights (11b), LoRA (23), sharding by FSDP (19)"),
)
"""The leaves of `decision_tree`: index of the question, answer, name, and techniques with their chapters."""


def training_step(operators: Sequence[tuple[str, str, str]], tensors: Sequence[tuple[str, float]], unit: str) -> Figure:
    """Returns a drawing of a forward and a backward pass, with a line for each tensor that an operator saves.

    An operator is ``(name, what, parameters)``, where ``what`` is a key of `SAVES` and ``parameters`` names those that
    get a gradient, or is empty. A tensor is ``(name, size in unit)``: the input of the first operator, which needs no
    gradient, and then the output of each. A line is as thick as its tensor is large, and a tensor that two operators
    save has two lines and is counted once. Raises ``ValueError`` unless there is one tensor more than there are
    operators, and for any other ``what``.
    """
    if len(tensors) != len(operators) + 1:
        raise ValueError(f"{len(operators)} operators have {len(operators) + 1} tensors; {len(tensors)} were given")
    if unknown := [what for _, what, _ in operators if what not in SAVES]:
        raise ValueError(f"an operator saves {', '.join(SAVES)}; {unknown[0]!r} was given")
    lines = [(place, place + step) for place, (_, what, _) in enumerate(operators) for step in SAVES[what]]
    saved = sorted({tensor for _, tensor in lines})
    said = [f"{name} saves {_names(tensors, place, what)}" for place, (name, what, _) in enumerate(operators)]
    many = f"{len(saved)} tensors" if len(saved) != 1 else "1 tensor"
    title = f"Forward saves {many}, and backward needs them from the last to the first"
    figure, axes = _blank(title, f"In the forward pass, {'; '.join(said)}.", height=2.9)
    most = max((tensors[tensor][1] for tensor in saved), default=1)
    for place, tensor in lines:
        x, to = 2 * tensor, 2 * place + 1
        width = 1 + 7 * tensors[tensor][1] / most
        axes.plot([x, to], [0.82, 0.22], color=plots.palette.sky, lw=width, solid_capstyle="butt", zorder=1)
    for tensor, (name, size) in enumerate(tensors):
        weight = "bold" if tensor in saved else "normal"
        axes.text(2 * tensor, 1, f"{name}\n{size:,g}", ha="center", va="center", fontsize=8, fontweight=weight)
        if tensor:
            axes.text(2 * tensor, 0, f"d{name}", ha="center", va="center", fontsize=8)
    for place, (name, _, parameters) in enumerate(operators):
        x = 2 * place + 1
        _arrow(axes, (x - 0.7, 1), (x + 0.72, 1))
        _arrow(axes, (x + 0.7, 0), (x - 0.72 if place else x, 0))
        if parameters:
            _arrow(axes, (x, 0), (x, -0.32))
            axes.text(x, -0.42, f"gradients of {parameters}", ha="center", va="center", fontsize=7)
        _box(axes, x, 1, name)
        _box(axes, x, 0, f"{name}, backward")
    end = 2 * len(operators) + 0.6
    for x, y, words in ((-0.6, 1.32, "forward →"), (-0.6, 0.5, "saved"), (-0.6, -0.02, "← backward")):
        axes.text(x, y, words, va="center", fontsize=8, color=plots.palette.grey)
    axes.text(end, 1.32, f"sizes: {unit}", va="center", ha="right", fontsize=8, color=plots.palette.grey)
    axes.set(xlim=(-0.7, end + 0.1), ylim=(-0.55, 1.45))
    return figure


def decision_tree() -> Figure:
    """Returns a drawing of the questions that lead from what peaks to the techniques to try, the cheapest first."""
    said = [f"{name}: {techniques}" for _, _, name, techniques in LEAVES]
    title = "What peaks decides which technique comes first"
    alt = f"A tree of three questions. {' '.join(question for question, _ in CHECKS)} Its leaves are {'; '.join(said)}."
    figure, axes = _blank(title, alt, height=3.6)
    heights = [len(LEAVES) - 1 - row for row in range(len(LEAVES))]
    where = [
        next(y for (check, *_), y in zip(LEAVES, heights, strict=True) if check == of) for of in range(len(CHECKS))
    ]
    line = {"color": plots.palette.grey, "lw": 1, "zorder": 1}
    for (check, answer, name, techniques), y in zip(LEAVES, heights, strict=True):
        axes.plot([0.145 if y == where[check] else 0.34, 0.44], [y, y], **line)
        axes.text(0.395, y + 0.06, answer or CHECKS[check][1], ha="center", va="bottom", fontsize=7.5)
        axes.text(0.45, y + 0.2, name, va="center", fontsize=8.5, fontweight="bold", color=plots.palette.blue)
        axes.text(0.45, y - 0.2, techniques, va="center", fontsize=8)
    axes.plot([0.34, 0.34], [where[-1], heights[-1]], **line)
    for (question, _), y, below in zip(CHECKS, where, [*where[1:], None], strict=True):
        _box(axes, 0.145, y, question, size=8)
        if below is not None:
            axes.plot([0.145, 0.145], [y, below], **line)
            axes.text(0.155, (y + below) / 2, "no", va="center", fontsize=7.5)
    note = "Techniques from left to right, the cheapest first. Chapters are in parentheses."
    axes.text(0.45, -0.8, note, va="center", fontsize=7.5, color=plots.palette.grey)
    axes.set(xlim=(0, 1), ylim=(-1, len(LEAVES) - 0.5))
    return figure


def kv_pages(tokens: Mapping[str, int], longest: int, page: int = 16) -> Figure:
    """Returns a drawing of the KV cache of some requests, reserved for the longest and in pages of ``page`` tokens.

    ``tokens`` has the tokens of each request so far, and ``longest`` is the number of tokens that a request may reach,
    a multiple of ``page``. Raises ``ValueError`` if it is not, or if a request is empty or longer.
    """
    if longest % page or not all(0 < count <= longest for count in tokens.values()):
        raise ValueError(f"requests have 1 to {longest} tokens, a multiple of {page}; {dict(tokens)} were given")
    columns, total = longest // page, len(tokens) * longest // page
    pages = _pages(tokens, page)
    wasted = len(pages) * page - sum(tokens.values())
    title = f"Pages leave {total - len(pages)} of {total} free, where a reservation for the longest request leaves none"
    alt = (
        f"Left, {len(tokens)} requests reserve {longest} tokens each and use {', '.join(map(str, tokens.values()))}. "
        f"Right, the same tokens are stored in {len(pages)} pages of {page}, in the order in which they were needed, "
        f"and {wasted} places in them are empty."
    )
    figure, axes = _blank(title, alt, height=0.9 + 0.55 * len(tokens))
    colours = plots.palette.blue, plots.palette.orange, plots.palette.purple, plots.palette.green
    shades = dict(zip(tokens, cycle(colours), strict=False))
    for row, (name, count) in enumerate(tokens.items()):
        for column in range(columns):
            _page(axes, column, -row, shades[name], min(1, max(0, count / page - column)), "")
        axes.text(-0.15, 0.4 - row, name, ha="right", va="center", fontsize=9, fontweight="bold")
    for place in range(total):
        column, row = columns + 1.2 + place % columns, place // columns
        name, share = pages[place] if place < len(pages) else ("", 0.0)
        _page(axes, column, -row, shades.get(name, "white"), share, name)
    for at, words in ((0, f"reserved for {longest} tokens each"), (columns + 1.2, f"pages of {page} tokens, one pool")):
        axes.text(at, 1.05, words, fontsize=8, color=plots.palette.dark)
    axes.set(xlim=(-0.6, 2 * columns + 1.3), ylim=(-len(tokens) + 0.9, 1.4))
    return figure


def _pages(tokens: Mapping[str, int], page: int) -> list[tuple[str, float]]:
    """The pages in the order in which requests that grow side by side need them: request, and share that is filled."""
    rounds = range(max(-(-count // page) for count in tokens.values()))
    return [
        (name, min(1.0, count / page - number))
        for number in rounds
        for name, count in tokens.items()
        if number * page < count
    ]


def _page(axes: Axes, x: float, y: float, colour: str, share: float, label: str) -> None:
    axes.add_patch(Rectangle((x, y), 0.94 * share, 0.8, fc=colour, ec="none", alpha=0.75))
    axes.add_patch(Rectangle((x, y), 0.94, 0.8, fc="none", ec=plots.palette.grey, lw=0.8))
    axes.text(
        x + 0.14, y + 0.4, label, ha="center", va="center", fontsize=9, fontweight="bold", color=plots.palette.dark
    )


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    line = {"arrowstyle": "-|>", "color": plots.palette.grey, "lw": 1}
    axes.annotate("", end, start, arrowprops=line, zorder=1)


def _names(tensors: Sequence[tuple[str, float]], place: int, what: str) -> str:
    return " and ".join(tensors[place + step][0] for step in SAVES[what]) or "nothing"


def _box(axes: Axes, x: float, y: float, label: str, size: float = 7.5) -> None:
    box = {"boxstyle": "round,pad=0.35", "fc": "white", "ec": plots.palette.dark, "lw": 0.8}
    axes.text(x, y, label, ha="center", va="center", fontsize=size, bbox=box, zorder=2)


def _blank(title: str, alt: str, height: float) -> tuple[Figure, Axes]:
    """An empty figure without axes and without a GPU's name, because it is drawn from rules and not measured."""
    figure, axes = plots.new(title, alt, height=height)
    axes.set_title(title, loc="left", fontweight="bold", fontsize=10)
    axes.set_title("", loc="right")
    axes.axis("off")
    figure.description = f"{title}. {alt}"
    return figure, axes
