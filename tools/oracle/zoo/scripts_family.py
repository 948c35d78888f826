"""Small programs as people write them for one file: generative models, graphs, tagging, reinforcement learning."""

from __future__ import annotations

import copy
import inspect
import math
import random
from collections import deque
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

LIBRARIES = ()
LOOPS = ()
MODELS: dict[str, Callable] = {}


def exists(model: str, dtype: str, padded: bool, cudnn: bool) -> bool:
    """Whether there is such a run: each is its own dtype."""
    return dtype == "fp32" and not padded and not cudnn


def definition(model: str) -> str:
    """The source of the programs, which share classes."""
    return inspect.getsource(inspect.getmodule(definition))


def run(stage, entry) -> None:
    """The whole program, without cuDNN, whose workspaces only a GPU can tell."""
    torch.manual_seed(0)
    random.seed(0)
    with torch.backends.cudnn.flags(enabled=False):
        MODELS[entry.model](stage)


def program(function):
    """Registers a function of `stage` by its name."""
    MODELS[function.__name__] = function
    return function


# Generative models


class VAE(nn.Module):
    """Convolutions into a mean and a deviation, and back."""

    def __init__(self, width=12):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
        self.mu, self.logvar = nn.Linear(32 * 7 * 7, width), nn.Linear(32 * 7 * 7, width)
        self.decoder = nn.Sequential(
            nn.Linear(width, 32 * 7 * 7), nn.Unflatten(1, (32, 7, 7)), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x):
        hidden = self.encoder(x)
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decoder(z), mu, logvar


@program
def vae(stage):
    model = VAE().to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    total = 0.0
    for step in range(3):
        x = torch.rand(17, 1, 28, 28).to("cuda")
        again, mu, logvar = model(x)
        bce = F.binary_cross_entropy(again, x, reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = bce + kld
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        stage(f"step {step}")
    with torch.no_grad():
        model.eval().decoder(torch.randn(5, 12, device="cuda")).cpu()
    stage("samples")


@program
def gan(stage):
    """DCGAN with its labels real and fake, and with a gradient penalty at the end."""
    generator = nn.Sequential(
        nn.ConvTranspose2d(20, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
        nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False), nn.Tanh(),
    ).cuda()  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(32, 1, 4, 1, 0, bias=False), nn.Flatten(0),
    ).cuda()  # fmt: skip
    criterion = nn.BCEWithLogitsLoss()
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for step in range(2):
        real = torch.randn(9, 3, 16, 16, device="cuda")
        labels = torch.full((9,), 1.0, device="cuda")
        critic.zero_grad()
        criterion(critic(real), labels).backward()
        fake = generator(torch.randn(9, 20, 1, 1, device="cuda"))
        labels.fill_(0.0)
        criterion(critic(fake.detach()), labels).backward()
        of_critic.step()
        generator.zero_grad()
        labels.fill_(1.0)
        loss = criterion(critic(fake), labels)
        loss.backward()
        of_generator.step()
        loss.item()
        stage(f"step {step}")
    share = torch.rand(9, 1, 1, 1, device="cuda")
    mixed = (share * real + (1 - share) * fake.detach()).requires_grad_(True)
    scores = critic(mixed)
    (gradient,) = torch.autograd.grad(scores, mixed, torch.ones_like(scores), create_graph=True, retain_graph=True)
    ((gradient.flatten(1).norm(2, dim=1) - 1) ** 2).mean().backward()
    stage("penalty")


class Block(nn.Module):
    """Two convolutions with the time between, and the input added."""

    def __init__(self, inside, outside, time):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(4, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1))
        self.time = nn.Linear(time, outside)
        self.second = nn.Sequential(
            nn.GroupNorm(4, outside), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outside, outside, 3, padding=1)
        )
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x, t):
        hidden = self.first(x) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.second(hidden)


class UNet(nn.Module):
    """Down, attention in the middle, up with what was kept on the way."""

    def __init__(self, width=16):
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Block(width, width, 4 * width), Block(width, 2 * width, 4 * width)])
        self.norm, self.heads = nn.GroupNorm(4, 2 * width), nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up = nn.ModuleList([Block(4 * width, width, 4 * width), Block(2 * width, width, 4 * width)])
        self.leave = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, t):
        half = self.width // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        angles = t[:, None].float() * frequencies[None]
        t = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        x, kept = self.enter(x), []
        for block in self.down:
            x = block(x, t)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        b, c, h, w = x.shape
        flat = self.norm(x).view(b, c, h * w).transpose(1, 2)
        x = x + self.heads(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(b, c, h, w)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, kept.pop()], dim=1), t)
        return self.leave(x)


@program
def diffusion(stage):
    """Noise of a random time is predicted, then samples are drawn; weights are averaged beside."""
    steps = 50
    betas = torch.linspace(1e-4, 0.02, steps).cuda()
    alphas = torch.cumprod(1 - betas, dim=0)
    model = UNet().to("cuda")
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for step in range(2):
        x = torch.randn(5, 3, 20, 20).cuda() * 0.5
        t = torch.randint(0, steps, (x.shape[0],), device="cuda")
        noise = torch.randn_like(x)
        scale = alphas.gather(0, t).view(-1, 1, 1, 1)
        loss = F.mse_loss(model(scale.sqrt() * x + (1 - scale).sqrt() * noise, t), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.mul_(0.99).add_(fast, alpha=0.01)
        stage(f"step {step}")
    with torch.inference_mode():
        x = torch.randn(2, 3, 20, 20, device="cuda")
        for i in reversed(range(steps - 3, steps)):
            noise = average(x, torch.full((2,), i, device="cuda"))
            x = (x - betas[i] / (1 - alphas[i]).sqrt() * noise) / (1 - betas[i]).sqrt()
            x = x + betas[i].sqrt() * torch.randn_like(x)
    stage("samples")


# Graphs, sequences


class Convolution(nn.Module):
    """A graph's convolution: messages along edges, summed where they arrive, normalized by degrees."""

    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside, bias=False)
        self.bias = nn.Parameter(torch.zeros(outside))

    def forward(self, x, edges):
        row, column = edges
        degree = torch.zeros(x.size(0), device=x.device).scatter_add_(0, column, torch.ones_like(column, dtype=x.dtype))
        norm = degree.pow(-0.5)
        norm[norm == float("inf")] = 0
        weight = norm[row] * norm[column]
        x = self.linear(x)
        out = torch.zeros_like(x)
        out.index_add_(0, column, x[row] * weight.unsqueeze(-1))
        return out + self.bias


@program
def graph(stage):
    """Two convolutions and an attention over edges; nodes are trained on by a mask."""
    nodes, edges = 211, torch.randint(211, (2, 900))
    edges = torch.cat([edges, torch.arange(211).repeat(2, 1)], dim=1).cuda()
    x, y = torch.randn(nodes, 33).cuda(), torch.randint(7, (nodes,)).cuda()
    mask = (torch.arange(nodes) % 3 == 0).cuda()
    first, second = Convolution(33, 24).cuda(), Convolution(24, 7).cuda()
    score = nn.Linear(48, 1).cuda()
    parameters = [*first.parameters(), *second.parameters(), *score.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01, weight_decay=5e-4)
    for step in range(2):
        optimizer.zero_grad()
        hidden = F.dropout(first(x, edges).relu(), 0.5, training=True)
        pairs = torch.cat([hidden[edges[0]], hidden[edges[1]]], dim=-1)
        weight = F.leaky_relu(score(pairs)).squeeze(-1)
        top = torch.full((nodes,), float("-inf"), device="cuda").scatter_reduce(0, edges[1], weight, "amax")
        weight = (weight - top[edges[1]]).exp()
        total = torch.zeros(nodes, device="cuda").scatter_add(0, edges[1], weight)
        hidden = torch.zeros_like(hidden).index_add(0, edges[1], hidden[edges[0]] * (weight / total[edges[1]])[:, None])
        out = F.log_softmax(second(hidden, edges), dim=1)
        loss = F.nll_loss(out[mask], y[mask])
        loss.backward()
        optimizer.step()
        stage(f"step {step}")
    with torch.no_grad():
        correct = (out.argmax(dim=-1)[~mask] == y[~mask]).sum()
    stage(f"evaluation of {correct.numel()}")


@program
def tagger(stage):
    """A bidirectional LSTM over packed sequences, sorted by length, with padding left out of the loss."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(301, 25, padding_idx=0)
            self.lstm = nn.LSTM(25, 30, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
            self.out = nn.Linear(60, 9)

        def forward(self, words, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embedding(words), lengths.cpu(), batch_first=True, enforce_sorted=False
            )
            hidden, _ = self.lstm(packed)
            hidden, _ = nn.utils.rnn.pad_packed_sequence(hidden, batch_first=True)
            return self.out(hidden)

    model = Tagger().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    for step, lengths in enumerate(([11, 4, 7, 9], [3, 8, 2])):
        rows = [torch.randint(1, 301, (n,)) for n in lengths]
        words = nn.utils.rnn.pad_sequence(rows, batch_first=True).cuda()
        tags = nn.utils.rnn.pad_sequence([row % 9 for row in rows], batch_first=True, padding_value=-100).cuda()
        scores = model(words, torch.tensor(lengths).cuda())
        loss = criterion(scores.view(-1, 9), tags.view(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        stage(f"step {step}")


# Learning from others, and from oneself


@program
def contrastive(stage):
    """SimCLR's loss over two views, with autocast and a scaler."""
    encoder = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 24, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    model = nn.Sequential(encoder, nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 16)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    for step in range(2):
        views = torch.cat([torch.randn(13, 3, 18, 18), torch.randn(13, 3, 18, 18)]).cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            features = F.normalize(model(views), dim=1)
            labels = torch.cat([torch.arange(13) for _ in range(2)])
            labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float().cuda()
            similarity = features @ features.T
            mask = torch.eye(labels.shape[0], dtype=torch.bool).cuda()
            labels = labels[~mask].view(labels.shape[0], -1)
            similarity = similarity[~mask].view(similarity.shape[0], -1)
            positives = similarity[labels.bool()].view(labels.shape[0], -1)
            negatives = similarity[~labels.bool()].view(similarity.shape[0], -1)
            logits = torch.cat([positives, negatives], dim=1) / 0.07
            loss = F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long).cuda())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        stage(f"step {step}")


@program
def distillation(stage):
    """A small network learns from a large one's soft labels, and from hidden states."""

    def network(width):
        return nn.Sequential(nn.Linear(40, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 11)).to("cuda")

    teacher, student, projection = network(128).eval(), network(32), nn.Linear(32, 128).to("cuda")
    optimizer = torch.optim.AdamW([*student.parameters(), *projection.parameters()], lr=1e-3, fused=True)
    temperature = 4.0
    for step in range(2):
        x, y = torch.randn(19, 40, device="cuda"), torch.randint(11, (19,), device="cuda")
        with torch.no_grad():
            hidden = teacher[:3](x)
            soft = F.softmax(teacher[3](hidden) / temperature, dim=-1)
        own = student[:3](x)
        logits = student[3](own)
        divergence = F.kl_div(F.log_softmax(logits / temperature, dim=-1), soft, reduction="batchmean")
        loss = 0.7 * divergence * temperature**2 + 0.2 * F.cross_entropy(logits, y, label_smoothing=0.1)
        loss = loss + 0.1 * (1 - F.cosine_similarity(projection(own), hidden, dim=-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stage(f"step {step}")


@program
def averaged(stage):
    """An average of the weights kept by name, gradients accumulated and clipped, the best state kept on the host."""
    model = nn.Sequential(nn.Linear(21, 64), nn.BatchNorm1d(64), nn.SiLU(), nn.Linear(64, 3)).cuda()
    shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
    best = None
    for step in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            loss = F.huber_loss(model(torch.randn(10, 21, device="cuda")), torch.randn(10, 3, device="cuda")) / 3
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                shadow[name].lerp_(parameter, 0.01)
        best = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        stage(f"step {step} {norm.dim()}")
    backup = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.data.copy_(shadow[name])
    with torch.no_grad():
        model.eval()(torch.randn(10, 21, device="cuda"))
    for name, parameter in model.named_parameters():
        parameter.data.copy_(backup[name])
    stage("evaluation")
    model.load_state_dict(best)
    stage("best")


@program
def dqn(stage):
    """A replay buffer of single steps, actions by the largest value, a target network that follows softly."""

    def network():
        return nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 4)).to("cuda")

    policy, target = network(), network()
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, amsgrad=True)
    memory: deque = deque(maxlen=64)
    state = torch.randn(1, 6, device="cuda")
    for step in range(24):
        if random.random() > 0.5:
            with torch.no_grad():
                action = policy(state).max(1).indices.view(1, 1)
        else:
            action = torch.tensor([[random.randrange(4)]], device="cuda", dtype=torch.long)
        done = step % 7 == 6
        following = None if done else torch.randn(1, 6, device="cuda")
        memory.append((state, action, following, torch.tensor([1.0], device="cuda")))
        state = torch.randn(1, 6, device="cuda") if following is None else following
        if len(memory) < 16:
            continue
        batch = list(zip(*random.sample(list(memory), 16), strict=True))
        alive = torch.tensor([one is not None for one in batch[2]], device="cuda", dtype=torch.bool)
        there = torch.cat([one for one in batch[2] if one is not None])
        values = policy(torch.cat(batch[0])).gather(1, torch.cat(batch[1]))
        after = torch.zeros(16, device="cuda")
        with torch.no_grad():
            after[alive] = target(there).max(1).values
        loss = nn.SmoothL1Loss()(values, (torch.cat(batch[3]) + 0.99 * after).unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        slow, fast = target.state_dict(), policy.state_dict()
        for name in fast:
            slow[name] = fast[name] * 0.005 + slow[name] * 0.995
        target.load_state_dict(slow)
        stage(f"step {step}")


@program
def mixture(stage):
    """A mixture of experts by hand: the two best of five for each token, and a loss that balances them."""

    class Mixture(nn.Module):
        def __init__(self, width=24, experts=5, best=2):
            super().__init__()
            self.router, self.best = nn.Linear(width, experts, bias=False), best
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
                for _ in range(experts)
            )

        def forward(self, x):
            shape = x.shape
            x = x.reshape(-1, shape[-1])
            probabilities = F.softmax(self.router(x), dim=-1)
            weights, chosen = torch.topk(probabilities, self.best, dim=-1)
            weights = weights / weights.sum(dim=-1, keepdim=True)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                token, place = torch.where(chosen == number)
                if token.numel() == 0:
                    continue
                out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
            share = F.one_hot(chosen, len(self.experts)).float().mean(dim=(0, 1))
            return out.view(shape), len(self.experts) * (share * probabilities.mean(0)).sum()

    model, head = Mixture().cuda(), nn.Linear(24, 10).cuda()
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    for step in range(2):
        x, y = torch.randn(3, 11, 24).cuda(), torch.randint(10, (3, 11)).cuda()
        out, balance = model(x)
        loss = F.cross_entropy(head(x + out).transpose(1, 2), y) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stage(f"step {step}")


# What depends on values that are known


@program
def distinct(stage):
    """Which labels there are, where, and how often: operators that CUDA counts for."""
    labels = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7] * 40).cuda()
    present, where, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    stage("unique")
    again = torch.repeat_interleave(present, counts), torch.unique(labels, sorted=False), labels.int().unique()
    stage("repeated")
    runs = torch.unique_consecutive(labels, return_inverse=True, return_counts=True)
    stage("runs")
    frequent = present[counts > 40], (labels > 4).nonzero(as_tuple=True), labels.masked_select(labels != 5)
    stage(f"selected {len(again) + len(runs) + len(frequent) + where.dim()}")
    weights = torch.rand(560, device="cuda", requires_grad=True)
    weights[labels == 9].sum().backward()
    stage("gradient")
