"""A small transformer, whose attention is PyTorch's fused one, or written out ("eager")."""

import os

import torch
from torch import nn
from torch.nn import functional as F

ATTENTION = os.environ.get("ATTENTION", "fused")


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        if ATTENTION == "eager":
            scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
            mixed = F.softmax(scores, dim=-1) @ value
        else:
            mixed = F.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = Attention(width, heads)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.inner(self.second(x))


def model(width: int = 512, heads: int = 8, layers: int = 4) -> nn.Module:
    """The whole of it: input and output [batch, length, width]."""
    return nn.Sequential(*(Block(width, heads) for _ in range(layers)))


def training_step(network: nn.Module, batch: int, length: int) -> None:
    """Forward, backward and a step of AdamW."""
    optimizer = torch.optim.AdamW(network.parameters())
    x = torch.randn(batch, length, network[0].first.normalized_shape[0], device="cuda")
    network(x).square().mean().backward()
    optimizer.step()
