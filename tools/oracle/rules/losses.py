"""Random losses, forward and backward: `python -m tools.oracle.rules losses --help`."""

from __future__ import annotations

import random

from tools.oracle.rules.indexing import FLOATS, indices, some
from tools.oracle.rules.norms import leaf
from tools.oracle.rules.products import laid_out

COUNT = 150  # snippets a GPU

ELEMENTWISE = (
    "mse_loss",
    "smooth_l1_loss",
    "l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "soft_margin_loss",
)


def reduction(rng: random.Random) -> str:
    return rng.choice(("", "", ", reduction='sum'", ", reduction='none'"))


def ended(rng: random.Random, lines: list[str], options: str) -> str:
    if rng.random() < 0.2:
        return "\n".join(lines)
    return "\n".join([*lines, "y.sum().backward()" if "none" in options else "y.backward()"])


def classes(rng: random.Random) -> str:
    rows, columns = some(rng, 20_000), some(rng, 3000)
    more = [[], [], [], [some(rng, 40)], [some(rng, 20), some(rng, 20)]][rng.randrange(5)]
    rows = rows if not more else some(rng, 64)
    dtype = rng.choice(FLOATS)
    # nll_loss of pixels fails in PyTorch for an input that is not contiguous
    function = rng.choice(("cross_entropy", "cross_entropy", "cross_entropy" if more else "nll_loss"))
    options = reduction(rng)
    lines = [leaf(rng, "x", [rows, columns, *more], dtype)]
    if rng.random() < 0.2:
        lines.append(f"w = torch.ones({columns}, device='cuda', dtype=torch.{dtype})")
        options += ", weight=w"
    elif function == "cross_entropy" and rng.random() < 0.25:  # with weights, sizes depend on values
        options += ", label_smoothing=0.1"
    if rng.random() < 0.3:
        options += ", ignore_index=0"
    if function == "cross_entropy" and rng.random() < 0.15:
        options = options.replace(", ignore_index=0", "")
        lines.append(f"t = {laid_out(rng, [rows, columns, *more], dtype)}")
    else:
        lines.append(f"t = {indices(rng, [rows, *more])}")
    return ended(rng, [*lines, f"y = F.{function}(x, t{options})"], options)


def elementwise(rng: random.Random) -> str:
    shape = [some(rng, 3000), some(rng, 3000)]
    dtype = rng.choice(FLOATS)
    function, options = rng.choice(ELEMENTWISE), reduction(rng)
    lines = [leaf(rng, "x", shape, dtype), leaf(rng, "t", shape, dtype).split(";")[0]]
    if function == "soft_margin_loss":  # its gradient lies as the target does, which PyTorch's meta kernels miss
        lines[1] = f"t = torch.ones({shape}, device='cuda', dtype=torch.{dtype})"
    if function == "mse_loss" and rng.random() < 0.2:
        lines[1] += "; t.requires_grad_()"
    if function.startswith("binary") and rng.random() < 0.25:
        lines.append(f"w = torch.ones({shape}, device='cuda', dtype=torch.{dtype})")
        options += ", weight=w"
    if function.endswith("logits") and rng.random() < 0.25:
        lines.append(f"p = torch.ones({shape[-1]}, device='cuda', dtype=torch.{dtype})")
        options += ", pos_weight=p"
    if function == "kl_div":
        options += rng.choice(("", ", log_target=True"))
        if "reduction" not in options and rng.random() < 0.5:
            options += ", reduction='batchmean'"
    return ended(rng, [*lines, f"y = F.{function}(x, t{options})"], options)


def margins(rng: random.Random) -> str:
    rows, columns = some(rng, 20_000), some(rng, 3000)
    dtype, options = rng.choice(FLOATS), reduction(rng)
    shape = [rows, columns] if rng.random() < 0.8 else [columns]
    lines = [leaf(rng, "x", shape, dtype), f"t = {indices(rng, shape[:-1] or [1])}"]
    if rng.random() < 0.3:
        lines.append(f"w = torch.ones({columns}, device='cuda', dtype=torch.{dtype})")
        options += ", weight=w"
    return ended(rng, [*lines, f"y = F.multi_margin_loss(x, t{rng.choice(('', ', p=2'))}{options})"], options)


def logsumexp(rng: random.Random) -> str:
    shape = [some(rng, 3000), some(rng, 3000)]
    dim = rng.choice(("0", "1", "(0, 1)", "-1"))
    line = leaf(rng, "x", shape, rng.choice(FLOATS))
    return ended(rng, [line, f"y = torch.logsumexp(x, {dim})"], "none")


DRAWINGS = [classes, classes, elementwise, elementwise, logsumexp, margins]
