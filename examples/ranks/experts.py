"""Expert parallelism: each rank stores some of the experts, and two all-to-alls per layer bring tokens to them.

simgpu run -m torch.distributed.run --nproc-per-node 8 examples/ranks/experts.py prints each peak without a GPU.
With GPUs, run torchrun --nproc-per-node 8 examples/ranks/experts.py.

`--hot 0.5` sends half of all tokens to the experts of rank 0, instead of an even share to each rank.
"""

import argparse

import torch
import torch.distributed as dist
from model import WIDTH, Layer, layers, report, setup, train
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn import functional as F

EXPERTS, INNER, CHOICES, TOKENS = 8, 3584, 2, 8192


class ExpertLayer(Layer):
    """A layer whose MLP is this rank's share of the experts."""

    def __init__(self):
        super().__init__()
        self.up = self.down = None
        own = EXPERTS // dist.get_world_size()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.gate_up = nn.Parameter(torch.randn(own, WIDTH, 2 * INNER) / WIDTH**0.5)
        self.out = nn.Parameter(torch.randn(own, INNER, WIDTH) / INNER**0.5)

    def mlp(self, n):
        n = n.flatten(0, 1)
        weights, chosen = self.router(n).softmax(-1).topk(CHOICES)
        order = chosen.flatten().argsort()  # a real router's choice would also decide `sent`
        rows = n[order // CHOICES]
        sent, received = splits(len(rows))
        here = all_to_all_single(rows.new_empty(sum(received), WIDTH), rows, received, sent)
        back = all_to_all_single(torch.empty_like(rows), self.compute(here), sent, received)
        y = (back[order.argsort()].unflatten(0, chosen.shape) * weights[..., None]).sum(1)
        return y[None]

    def compute(self, rows):
        """Returns the experts' results; this rank's experts share the rows evenly."""
        own = len(self.out)
        ends = torch.arange(1, own + 1, device=rows.device, dtype=torch.int32) * (len(rows) // own)
        gate, up = F.grouped_mm(rows, self.gate_up, offs=ends).chunk(2, -1)
        return F.grouped_mm(F.silu(gate) * up, self.out, offs=ends)


def splits(rows: int) -> tuple[list[int], list[int]]:
    """Returns how many rows this rank sends to each rank, and how many it receives from each."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first = int(rows * hot) if hot else rows // ranks
    others = (rows - first) // max(1, ranks - 1)
    sent = [first] + [others] * (ranks - 1)
    sent[-1] += rows - sum(sent)
    return sent, [sent[rank]] * ranks


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--hot", type=float, help="share of all tokens that choose rank 0's experts")
hot = parser.parse_args().hot
if hot is not None and not 0 < hot < 1:
    parser.error(f"--hot is a share between 0 and 1, not {hot}")
device = setup()
if EXPERTS % dist.get_world_size():
    raise SystemExit(f"{EXPERTS} experts cannot be divided evenly among {dist.get_world_size()} ranks")
net = layers(ExpertLayer).to(device)
train(net, torch.zeros(1, TOKENS, WIDTH, device=device))
report("experts")
dist.destroy_process_group()
