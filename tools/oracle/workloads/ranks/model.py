"""The network of these workloads: a small transformer whose matrices can be cut, and how it is trained."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH, DEPTH = 512, 8, 1000, 128, 4, 4


class Attention(nn.Module):
    """Causal attention whose number of heads follows from the columns that this rank has of each projection."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """Four times as wide inside."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    """A transformer layer, norms first."""

    def __init__(self):
        super().__init__()
        self.first_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.second_norm, self.feed_forward = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.first_norm(x))
        return x + self.feed_forward(self.second_norm(x))


class Network(nn.Module):
    """Layers of a language model: all of them, or those of one stage of a pipeline, where `first` and `last` say
    whether it has the embedding and the head."""

    def __init__(self, depth=DEPTH, first=True, last=True, vocabulary=VOCABULARY):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH) if first else None
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH) if last else None
        self.head = nn.Linear(WIDTH, vocabulary, bias=False) if last else None

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def network(**options):
    """A network on the GPU."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        return Network(**options)


def tokens(batch=BATCH):
    """A batch of text, as indices."""
    return torch.randint(VOCABULARY, (batch, LENGTH), device="cuda")


def loss_of(logits, targets):
    """Cross-entropy of each token."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def train(stage, model, optimizer, steps=2):
    """Steps of training; the counters are read after forward, backward, the optimizer and `zero_grad`."""
    for step in range(steps):
        x, targets = tokens(), tokens()
        logits = model(x)
        stage(f"forward {step}")
        loss = loss_of(logits, targets)
        del logits
        loss.backward()
        stage(f"backward {step}")
        optimizer.step()
        stage(f"step {step}")
        optimizer.zero_grad()
        del x, targets, loss
        stage(f"end {step}")
