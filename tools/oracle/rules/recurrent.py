"""Random LSTMs, GRUs and RNNs without cuDNN, and single cells of them, forward and backward:
`python -m tools.oracle.rules recurrent --help`."""

from __future__ import annotations

import random

from tools.oracle.rules.indexing import FLOATS, some

COUNT = 120  # snippets a GPU

KINDS = ("LSTM", "LSTM", "GRU", "GRU", "RNN")
OFF = "torch.backends.cudnn.enabled = False"


def ended(rng: random.Random, lines: list[str], result: str) -> str:
    """The lines in one of the ways to run a network; `result`: what is gone back from."""
    way = rng.choice(("train", "train", "train", "twice", "no_grad", "inference_mode", "autocast"))
    *made, run = lines
    if way in ("no_grad", "inference_mode"):
        return "\n".join([OFF, *made, f"with torch.{way}():", f"    {run}"])
    if way == "autocast":  # whose cache lets go in an order that differs from run to run
        dtype = rng.choice(("bfloat16", "float16"))
        run = f"with torch.autocast('cuda', torch.{dtype}, cache_enabled=False):\n    {run}"
    return "\n".join([OFF, *made, *[run, f"{result}.sum().backward()"] * (1 + (way == "twice"))])


def options_of(rng: random.Random, kind: str, hidden: int) -> tuple[str, int]:
    """Options of a module, and how many states it has."""
    layers, ways = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2))
    options = [f"num_layers={layers}"] * (layers > 1) + ["bidirectional=True"] * (ways > 1)
    options += ["bias=False"] * (rng.random() < 0.2) + ["dropout=0.1"] * (layers > 1 and rng.random() < 0.5)
    if kind == "LSTM" and hidden > 1 and rng.random() < 0.2:
        options.append(f"proj_size={rng.randrange(1, hidden)}")
    if kind == "RNN" and rng.random() < 0.3:
        options.append("nonlinearity='relu'")
    return "".join(f", {option}" for option in options), layers * ways


def sequence(rng: random.Random) -> str:
    kind, dtype = rng.choice(KINDS), rng.choice(FLOATS)
    width, hidden, steps, batch = some(rng, 300), some(rng, 300), some(rng, 12), some(rng, 40)
    options, states = options_of(rng, kind, hidden)
    shape = [steps, batch, width]
    if rng.random() < 0.4:
        options += ", batch_first=True"
        shape = [batch, steps, width]
    if rng.random() < 0.1:
        shape = [steps, width]
    lines = [
        f"m = nn.{kind}({width}, {hidden}{options}, dtype=torch.{dtype}, device='cuda')",
        f"x = torch.zeros({shape}, device='cuda', dtype=torch.{dtype}{', requires_grad=True' * (rng.random() < 0.6)})",
    ]
    call = "m(x)"
    if len(shape) == 3 and "proj_size" not in options and rng.random() < 0.2:
        lines.append(f"h = torch.zeros({states}, {batch}, {hidden}, device='cuda', dtype=torch.{dtype})")
        call = "m(x, (h, h))" if kind == "LSTM" else "m(x, h)"
    return ended(rng, [*lines, f"y = {call}[0]"], "y")


def packed(rng: random.Random) -> str:
    kind = rng.choice(KINDS)
    width, hidden = some(rng, 300), some(rng, 300)
    lengths = sorted((some(rng, 10) for _ in range(some(rng, 12))), reverse=True)
    lines = [
        f"m = nn.{kind}({width}, {hidden}{options_of(rng, kind, hidden)[0]}, device='cuda')",
        f"x = torch.zeros({lengths[0]}, {len(lengths)}, {width}, device='cuda')",
        f"x = nn.utils.rnn.pack_padded_sequence(x, {lengths})",
    ]
    return ended(rng, [*lines, "y = m(x)[0].data"], "y")


def cell(rng: random.Random) -> str:
    kind, dtype = rng.choice(KINDS), rng.choice(FLOATS)
    width, hidden, batch = some(rng, 600), some(rng, 600), some(rng, 200)
    bias = ", bias=False" * (rng.random() < 0.3)
    lines = [
        f"m = nn.{kind}Cell({width}, {hidden}{bias}, dtype=torch.{dtype}, device='cuda')",
        f"x = torch.zeros({batch}, {width}, device='cuda', dtype=torch.{dtype})",
    ]
    return ended(rng, [*lines, "y = m(x)"], rng.choice(("y[0]", "(y[0] + y[1])", "y[1]")) if kind == "LSTM" else "y")


DRAWINGS = [sequence, sequence, packed, cell]
