"""How long a simulated training step takes: against MemTracker on the same step, and at batch 256 against batch 1.

MemTracker (torch.distributed._tools.mem_tracker) is PyTorch's own estimator; it traces the step on meta tensors.
Each figure is the best of several rounds, taken in turn so that both sides see the same machine.
"""

import time

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import BertConfig, BertModel

import labkit

ROUNDS = 7


def bert(device):
    with torch.device(device):
        model = BertModel(BertConfig(attn_implementation="eager")).train()
    return model, torch.optim.AdamW(model.parameters(), foreach=True)


def step(model, optimizer, batch, length):
    tokens = torch.zeros(batch, length, dtype=torch.long, device=next(model.parameters()).device)
    model(tokens).last_hidden_state.sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def seconds(work, *arguments) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def simulated(*batches: int, length: int):
    """The best time of a step at each batch size on a simulated A100, the sizes taken in turn."""
    with labkit.simulated_gpu("A100-80GB"):
        model, optimizer = bert("cuda")
        step(model, optimizer, 1, length)
        rounds = [[seconds(step, model, optimizer, batch, length) for batch in batches] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def tracked(batch: int, length: int):
    """The best time of a step under MemTracker on the meta device."""
    model, optimizer = bert("meta")
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    times = []
    with tracker:
        for _ in range(ROUNDS):
            times.append(seconds(step, model, optimizer, batch, length))
            tracker.reset_mod_stats()
    return min(times)


def main():
    (ours,), theirs = simulated(32, length=512), tracked(32, length=512)
    print(f"BERT-base 32x512 training step: simulated {ours:.3f} s, MemTracker {theirs:.3f} s")
    print(f"ratio simulated / MemTracker: {ours / theirs:.2f} (goal: at most 1)")
    small, large = simulated(1, 256, length=128)
    print(f"ratio batch 256 / batch 1 at length 128: {large / small:.2f} (goal: 1 within 10 %)")


if __name__ == "__main__":
    main()
