"""Random calls as few programs make them: masks of a wrong shape, tensors that lie as few do.

`python -m tools.oracle.rules_uncommon --help`
"""

from __future__ import annotations

import random

from tools.oracle import cases


def masks(rng: random.Random) -> str:
    """A mask with values, of the right shape or of another, that reads or writes."""
    shape = rng.choice(("3,", "6, 6", "7,", "6, 7", "6,"))
    place = rng.choice(("device='cuda', ", "device='cuda', ", ""))
    kind = rng.choice(("bool", "bool", "bool", "uint8"))
    made = f"x = torch.zeros(6, 7, device='cuda')\nm = torch.zeros(({shape}), {place}dtype=torch.{kind})\n"
    made += "i = torch.zeros(3, device='cuda', dtype=torch.int64)\n"
    one = rng.choice(("1.0", "torch.ones(())", "torch.ones((), device='cuda')"))
    uses = (
        "tell(x[m])", "tell(x[:, m])", "tell(x[m, m])", "tell(x[m, i])", "tell(x[i, m])", f"x[m] = {one}",
        f"x[m] = {one}", f"x[:, m] = {one}", "x.index_put_((m,), torch.ones(()), accumulate=True)",
    )  # fmt: skip
    return made + rng.choice(uses)


DRAWINGS = [masks]

if __name__ == "__main__":
    cases.command("uncommon", lambda rng: rng.choice(DRAWINGS)(rng), count=120)
