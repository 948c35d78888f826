"""A transformer made of the same operators, in the same order, as the one whose memory real GPUs recorded.

The recordings' README names the public repository; its code is not used here. Vocabulary 10000, d_model 512, 4 layers,
16 heads, d_ff 1344, batch 10; everything is written out in elementary operators, einsum for each product, and the
optimizer is an out-of-place Adam that makes new state tensors at each step.
"""

import contextlib
import math

import torch
from torch import nn

VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN, THETA, BATCH = 10000, 256, 512, 4, 16, 1344, 10000, 10


def drawn(*shape, std):
    """A parameter drawn in place, as trunc_normal_ did in the recorded torch 2.6 (today's takes memory to draw)."""
    parameter = nn.Parameter(torch.empty(*shape, device="cuda"))
    return nn.init.normal_(parameter, std=std)


class Linear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = drawn(outputs, inputs, std=math.sqrt(2 / (inputs + outputs)))

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.weight)


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, device="cuda"))

    def forward(self, x):
        kept = x.dtype
        x = x.to(torch.float32)
        root = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + 1e-5)
        result = x / root * self.weight
        return result.to(kept)


class Rotation(nn.Module):
    """Rotary position embedding whose tables stay on the CPU and are brought over, row by row, at each call."""

    def __init__(self):
        super().__init__()
        width = WIDTH // HEADS
        rates = torch.tensor([THETA ** -((2 * k - 2) / width) for k in range(1, width // 2 + 1)])
        angles = torch.arange(CONTEXT)[:, None] * rates
        self.sines, self.cosines = angles.sin(), angles.cos()

    def forward(self, x):
        rows = torch.arange(x.shape[-2])
        sines = self.sines[rows].to("cuda")[..., None]
        cosines = self.cosines[rows].to("cuda")[..., None]
        x = x.reshape(*x.shape[:-1], -1, 2)
        first = cosines * x[..., :1] - sines * x[..., 1:]
        second = sines * x[..., :1] + cosines * x[..., 1:]
        return torch.cat([first, second], dim=-1).flatten(-2)


def softmax(x):
    largest, _ = torch.max(x, dim=-1, keepdim=True)
    return torch.exp(x - largest) / torch.sum(torch.exp(x - largest), dim=-1, keepdim=True)


def attend(queries, keys, values, mask):
    mask = mask.to("cuda")
    width = queries.shape[-1]
    products = torch.einsum("...qd,...kd->...qk", queries, keys)
    scores = products / torch.sqrt(torch.tensor(width, device="cuda"))
    scores.masked_fill_(~mask.bool(), -float("inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, values)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotation = Rotation()
        self.query, self.key, self.value, self.output = (Linear(WIDTH, WIDTH) for _ in range(4))

    def heads(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(-2, -3)

    def forward(self, x):
        queries, keys, values = self.query(x), self.key(x), self.value(x)
        queries, keys, values = self.heads(queries), self.heads(keys), self.heads(values)
        queries = self.rotation(queries)
        keys = self.rotation(keys)
        mask = torch.tril(torch.ones(x.shape[-2], x.shape[-2]))
        result = attend(queries, keys, values, mask)
        result = result.transpose(-2, -3).flatten(-2)
        return self.output(result)


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.down, self.up = Linear(WIDTH, HIDDEN), Linear(HIDDEN, WIDTH), Linear(WIDTH, HIDDEN)

    def forward(self, x):
        gate = self.gate(x)
        activated = gate * torch.sigmoid(gate)
        up = self.up(x)
        product = activated * up
        return self.down(product)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = RMSNorm(), RMSNorm()
        self.attention, self.feed_forward = Attention(), SwiGLU()

    def forward(self, x):
        normed = self.first(x)
        attended = self.attention(normed)
        middle = attended + x
        normed_middle = self.second(middle)
        fed = self.feed_forward(normed_middle)
        return fed + middle


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = drawn(VOCABULARY, WIDTH, std=1)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RMSNorm()
        self.head = Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding[tokens]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x)


def last(logits):
    """logits[:, -1, :] as torch 2.6 recorded it: each full slice was an operator of its own, and had a backward."""
    batch, _, vocabulary = logits.shape
    return logits.narrow(0, 0, batch).select(1, -1).narrow(1, 0, vocabulary)


def cross_entropy(logits, target):
    largest, _ = torch.max(logits, dim=-1, keepdim=True)
    log_softmax = logits - largest - torch.log(torch.sum(torch.exp(logits - largest), dim=-1, keepdim=True))
    wanted = torch.zeros_like(log_softmax)
    wanted.scatter_(-1, target.unsqueeze(-1), 1)
    return -torch.sum(wanted * log_softmax) / logits.shape[0]


class Adam:
    """Adam that replaces its state, and each parameter's data, by new tensors."""

    def __init__(self, parameters, rate=1e-3, betas=(0.9, 0.999), epsilon=1e-8):
        self.parameters, self.rate, self.betas, self.epsilon = list(parameters), rate, betas, epsilon
        self.moments = [[torch.zeros_like(p.data), torch.zeros_like(p.data)] for p in self.parameters]
        self.steps = 0

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        self.steps += 1
        (one, two), held = self.betas, {}
        rate = self.rate * math.sqrt(1 - two**self.steps) / (1 - one**self.steps)
        for parameter, state in zip(self.parameters, self.moments, strict=True):
            held["gradient"] = gradient = parameter.grad.data
            held["old_first"] = first = state[0]
            held["first"] = new_first = one * first + (1 - one) * gradient
            state[0] = new_first
            held["old_second"] = second = state[1]
            held["second"] = new_second = two * second + (1 - two) * gradient**2
            state[1] = new_second
            parameter.data = parameter.data - rate * (new_first / (torch.sqrt(new_second) + self.epsilon))
            parameter.data = parameter.data - self.rate * 0.0 * parameter.data


def forward(context: int, mixed: bool = False):
    """The recorded run "forward": the model is built, then three forward passes whose outputs are not kept."""
    model = Transformer()
    tokens = torch.randint(0, VOCABULARY, (BATCH, context)).to("cuda")
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16) if mixed else contextlib.nullcontext():
            model(tokens)


def forward_and_backward(context: int, mixed: bool = False):
    """The recorded run "forward_and_backward": the model, the optimizer's state, three training steps."""
    model = Transformer()
    optimizer = Adam(model.parameters())
    tokens = torch.randint(0, VOCABULARY, (BATCH, context)).to("cuda")
    labels = torch.randint(0, VOCABULARY, (BATCH,)).to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16) if mixed else contextlib.nullcontext():
        for _ in range(3):
            optimizer.zero_grad()
            logits = model(tokens)
            predicted = last(logits)
            loss = cross_entropy(predicted, labels)
            loss.backward()
            optimizer.step()
