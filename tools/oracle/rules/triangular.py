"""Snippets of linear algebra that needs no cuSOLVER: `python -m tools.oracle.rules triangular`."""

from __future__ import annotations

import random

COUNT = 100  # snippets a GPU


def draw(rng: random.Random) -> str:
    """A triangular system, or LU factors unpacked: of a batch or of one, small or large, broadcast or not."""
    batch = rng.choice([(), (), (1,), (3,), (2, 5), (12,), (0,)])
    side, right = rng.choice([1, 3, 16, 63, 64, 65, 130, 513]), rng.choice([0, 1, 4, 33])
    dtype = rng.choice(["torch.float32", "torch.float64"])
    if rng.random() < 0.3:
        rows = rng.choice([side, side + 2])
        shape, pivots = (*batch, rows, side), (*batch, min(rows, side))
        options = rng.choice(["", ", unpack_data=False", ", unpack_pivots=False"])
        return (
            f"a = torch.zeros({shape}, dtype={dtype}, device='cuda'); "
            f"p = torch.ones({pivots}, dtype=torch.int32, device='cuda'); y = torch.lu_unpack(a, p{options})"
        )
    of_sides = rng.choice([batch, ()])
    matrix = rng.choice(["", ".mT", "[..., ::1]"])
    a = f"a = torch.zeros({(*batch, side, side)}, dtype={dtype}, device='cuda'){matrix}; "
    if rng.random() < 0.3:
        b = f"b = torch.zeros({(*of_sides, side, right)}, dtype={dtype}, device='cuda'); "
        return a + b + f"y = torch.triangular_solve(b, a, upper={rng.random() < 0.5})"
    left = rng.random() < 0.6
    shape = (*of_sides, side, right) if left else (*of_sides, right, side)
    b = f"b = torch.zeros({shape}, dtype={dtype}, device='cuda'); "
    upper = rng.random() < 0.5
    return a + b + f"y = torch.linalg.solve_triangular(a, b, upper={upper}, left={left})"
