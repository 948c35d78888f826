"""Snippets of ctc_loss: `python -m tools.oracle.rules ctc`."""

from __future__ import annotations

import random

COUNT = 100  # snippets a GPU


def draw(rng: random.Random) -> str:
    """A loss and its gradient: of a batch or of one sequence, short or long, with targets and lengths in each form."""
    steps, classes = rng.choice([9, 30, 60, 150, 219, 220, 300, 500]), rng.choice([5, 20, 33, 90])
    batch, longest = rng.choice([1, 2, 3, 7, 33, 164]), rng.choice([1, 3, 8])
    dtype = rng.choice(["torch.float32", "torch.float32", "torch.float64"])
    blank = rng.choice(["", f", blank={classes - 1}"])
    options = f", reduction={rng.choice(['none', 'mean', 'sum'])!r}, zero_infinity={rng.random() < 0.4}{blank}"
    ends = [rng.randint(1, longest) for _ in range(batch)]
    lengths = [rng.randint(steps // 2, steps - 1) for _ in range(batch)]
    shape, grad = (steps, batch, classes), rng.random() < 0.85
    kind = rng.choice(["padded", "padded", "flat", "single"])
    targets = f"torch.ones({(batch, longest)}, dtype={rng.choice(['torch.int64', 'torch.int32'])}, device='cuda')"
    if kind == "flat":
        where = rng.choice(["cpu", "cuda"])
        targets = f"torch.ones({sum(ends)}, dtype=torch.int64, device={where!r})"
    given = f"{lengths}, {ends}" if rng.random() < 0.4 else f"torch.tensor({lengths}), torch.tensor({ends})"
    if kind == "single":
        shape = (steps, classes)
        targets = f"torch.ones({ends[0]}, dtype=torch.int64, device='cuda')"
        given = f"torch.tensor({lengths[0]}), torch.tensor({ends[0]})"
    layout = rng.choice(["", "", ".mT.contiguous().mT"])
    return (
        f"p = torch.randn({shape}, dtype={dtype}, device='cuda'){layout}.log_softmax(-1).detach(); "
        f"p.requires_grad_({grad}); t = {targets}; y = F.ctc_loss(p, t, {given}{options})"
        + ("; y.sum().backward()" if grad else "")
    )
