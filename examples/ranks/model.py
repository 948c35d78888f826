"""What the scripts of this folder share: a small transformer, one training loop, and the report of each rank."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, DEPTH = 1024, 8, 4


class Layer(nn.Module):
    """A transformer's layer; input and output are [sequences, tokens, width]."""

    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        n = self.norm_1(x)
        q, k, v = (part(n).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))

    def mlp(self, n):
        """Returns what is added to the tokens `n` after attention."""
        return self.down(F.gelu(self.up(n)))


def setup() -> torch.device:
    """Joins the process group as torchrun's environment says, and returns this rank's GPU."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def layers(kind: type[nn.Module] = Layer, depth: int = DEPTH) -> nn.Sequential:
    """Returns a model of `depth` layers in bfloat16, on the CPU."""
    return nn.Sequential(*(kind() for _ in range(depth))).to(torch.bfloat16)


def train(net: nn.Module, x: torch.Tensor, steps: int = 2, **adam) -> None:
    """Takes some steps of AdamW; the first one allocates its states. `adam` are further options of the optimizer."""
    optimizer = torch.optim.AdamW(net.parameters(), **adam)
    for _ in range(steps):
        net(x.to(torch.bfloat16)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def report(scheme: str) -> None:
    """Prints this rank's allocated peak."""
    peak = torch.cuda.max_memory_allocated() / 2**20
    print(f"{scheme}, rank {dist.get_rank()} of {dist.get_world_size()}: {peak:,.1f} MiB at the peak", flush=True)
