"""Networks and training steps drawn at random.

Layer kinds, sizes, dtypes, optimizer, loss, autocast, checkpointing, dropout, accumulation, clipping.
"""

import random
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU)
OPTIMIZERS = (
    partial(torch.optim.SGD, lr=0.1),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    torch.optim.Adam,
    torch.optim.AdamW,
    partial(torch.optim.AdamW, foreach=False),
    partial(torch.optim.AdamW, fused=True),
    torch.optim.RMSprop,
    torch.optim.Adagrad,
)


def random_network(seed):
    """The workload that `seed` draws; the same on every machine and in every version of torch."""
    return partial(_train, seed=seed)


def _train(stage, seed):
    draw = random.Random(seed)
    dtype = draw.choice((torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16))
    autocast = draw.choice((None, None, torch.bfloat16, torch.float16)) if dtype is torch.float32 else None
    kind = draw.choice((_Rows, _Sequence, _Image))
    model = kind(draw).to("cuda", dtype)
    optimizer = draw.choice(OPTIMIZERS)(model.parameters())
    inputs, loss_of = model.inputs(draw, dtype)
    accumulate, clip = draw.choice((1, 1, 2)), draw.random() < 0.25
    scaler = torch.amp.GradScaler("cuda", enabled=autocast is torch.float16 and draw.random() < 0.7)
    stage("model and input")
    with torch.backends.cudnn.flags(enabled=False):
        for step in range(2):
            for _ in range(accumulate):
                with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
                    loss = loss_of(model(inputs))
                stage(f"forward {step}")
                scaler.scale(loss).backward()
                del loss
                stage(f"backward {step}")
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            stage(f"step {step}")
        model.eval()
        with torch.no_grad():
            model(inputs)
        stage("inference")


class _Stack(nn.Module):
    """Layers one after another, each perhaps with a residual sum, perhaps checkpointed."""

    def __init__(self, draw, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.keep = draw.choice(("all", "all", "inputs", "reentrant"))
        self.residual = [draw.random() < 0.4 for _ in layers]

    def _step(self, layer, residual, x):
        y = layer(x)
        return x + y if residual and y.shape == x.shape else y

    def forward(self, x):
        for layer, residual in zip(self.layers, self.residual, strict=True):
            step = partial(self._step, layer, residual)
            if self.keep == "all" or not self.training:
                x = step(x)
            else:
                x = checkpoint(step, x, use_reentrant=self.keep == "reentrant")
        return x


def _size(draw, least, most):
    """A width, as often a round one as any."""
    width = draw.randint(least, most)
    return width if draw.random() < 0.3 else max(least, width // 32 * 32)


class _Rows(nn.Module):
    """A perceptron on rows, with norms, dropout and bottlenecks."""

    def __init__(self, draw):
        super().__init__()
        widths = [_size(draw, 32, 1500) for _ in range(draw.randint(2, 6))]
        layers = []
        for before, after in pairwise(widths):
            layers.append(nn.Linear(before, after, bias=draw.random() < 0.8))
            layers += [nn.LayerNorm(after)] if draw.random() < 0.3 else []
            layers += [nn.BatchNorm1d(after)] if draw.random() < 0.15 else []
            layers.append(draw.choice(ACTIVATIONS)())
            layers += [nn.Dropout(draw.choice((0.1, 0.5)))] if draw.random() < 0.4 else []
        self.width, self.classes = widths[0], draw.choice((2, 10, 1000))
        self.stack, self.head = _Stack(draw, layers), nn.Linear(widths[-1], self.classes)

    def inputs(self, draw, dtype):
        rows = _size(draw, 8, 6000)
        return torch.randn(rows, self.width, dtype=dtype, device="cuda"), _loss(draw, (rows,), self.classes)

    def forward(self, x):
        return self.head(self.stack(x))


class _Sequence(nn.Module):
    """A transformer on tokens: attention in operators or fused, causal or not."""

    def __init__(self, draw):
        super().__init__()
        heads = draw.choice((1, 2, 4, 8))
        width = heads * draw.choice((16, 24, 32, 64, 80))
        self.vocabulary = _size(draw, 100, 40000)
        self.embed = nn.Embedding(self.vocabulary, width)
        causal, fused, dropout = draw.random() < 0.5, draw.random() < 0.6, draw.choice((0.0, 0.1))
        norm = draw.choice((nn.LayerNorm, nn.RMSNorm))
        activation = draw.choice(ACTIVATIONS)
        layers = []
        for _ in range(draw.randint(1, 3)):
            layers.append(_Attention(width, heads, norm, causal, fused, dropout))
            layers.append(
                nn.Sequential(
                    norm(width),
                    nn.Linear(width, 4 * width),
                    activation(),
                    nn.Linear(4 * width, width),
                    nn.Dropout(dropout),
                )
            )
        self.stack = _Stack(draw, layers)
        self.stack.residual = [True] * len(layers)
        self.head = nn.Linear(width, self.vocabulary, bias=False)
        if draw.random() < 0.5:
            self.head.weight = self.embed.weight

    def inputs(self, draw, dtype):
        shape = draw.randint(1, 12), _size(draw, 8, 300)
        return torch.zeros(shape, dtype=torch.long, device="cuda"), _loss(draw, shape, self.vocabulary)

    def forward(self, tokens):
        return self.head(self.stack(self.embed(tokens)))


class _Attention(nn.Module):
    def __init__(self, width, heads, norm, causal, fused, dropout):
        super().__init__()
        self.heads, self.causal, self.fused, self.dropout = heads, causal, fused, dropout
        self.norm, self.project, self.gather = (
            norm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.project(self.norm(x)).split(width, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)
        else:
            scores = query @ key.transpose(-2, -1) / (width // self.heads) ** 0.5
            if self.causal:
                hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(hidden, float("-inf"))
            mixed = F.dropout(scores.softmax(-1), dropout) @ value
        return self.gather(mixed.transpose(1, 2).reshape(batch, length, width))


class _Image(nn.Module):
    """Convolutions, pooling and norms on images."""

    def __init__(self, draw):
        super().__init__()
        layers, self.channels, self.side = [], draw.choice((1, 3)), draw.choice((28, 32, 65))
        width, side = self.channels, self.side
        for _ in range(draw.randint(1, 4)):
            after, kernel = draw.choice((8, 16, 24, 64)), draw.choice((1, 3, 5))
            layers.append(nn.Conv2d(width, after, kernel, padding=kernel // 2, bias=draw.random() < 0.7))
            norm = draw.choice((None, nn.BatchNorm2d(after), nn.GroupNorm(4, after)))
            layers += [norm] if norm is not None else []
            layers.append(draw.choice(ACTIVATIONS)())
            if side >= 8 and draw.random() < 0.6:
                layers.append(draw.choice((nn.MaxPool2d, nn.AvgPool2d))(2))
                side //= 2
            width = after
        self.classes = draw.choice((10, 100))
        self.stack = _Stack(draw, layers)
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(width * side * side, self.classes))

    def inputs(self, draw, dtype):
        rows = draw.randint(1, 48)
        images = torch.randn(rows, self.channels, self.side, self.side, dtype=dtype, device="cuda")
        return images, _loss(draw, (rows,), self.classes)

    def forward(self, x):
        return self.head(self.stack(x))


def _loss(draw, shape, classes):
    """A function from logits of shape (*shape, classes) to a loss."""
    kind = draw.choice(("cross_entropy", "cross_entropy", "mse", "sum", "mean"))
    if kind == "cross_entropy":
        targets = torch.zeros(shape, dtype=torch.long, device="cuda").flatten()
        return lambda logits: F.cross_entropy(logits.flatten(0, -2), targets)
    if kind == "mse":
        targets = torch.zeros(*shape, classes, device="cuda")
        return lambda logits: F.mse_loss(logits.float(), targets)
    return lambda logits: getattr(logits, kind)()


WORKLOADS = {f"random_{seed}": random_network(seed) for seed in range(100)}
