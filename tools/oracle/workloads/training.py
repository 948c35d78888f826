"""Training steps with the ways of saving memory: checkpointing, accumulation, autocast, offloading."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A transformer block with dropout, `width` wide, in the plainest operators."""

    def __init__(self, width, heads=4, dropout=0.1):
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.gather = nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.project(self.first_norm(x)).view(batch, length, self.heads, -1).transpose(1, 2).chunk(3, dim=-1)
        query, key, value = parts
        scores = (query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5).softmax(-1)
        mixed = (self.dropout(scores) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.gather(mixed))
        return x + self.dropout(self.contract(F.gelu(self.expand(self.second_norm(x)))))


class Network(nn.Module):
    """Embedding, blocks, a head over the vocabulary; `keep` says what a block keeps for backward."""

    def __init__(self, keep="all", width=128, depth=3, vocabulary=1000):
        super().__init__()
        self.keep = keep
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x) if self.keep == "all" else checkpoint(block, x, use_reentrant=self.keep == "reentrant")
        return self.head(x)


def train(
    stage,
    keep="all",
    autocast=None,
    scaler=False,
    clip=None,
    accumulate=1,
    set_to_none=True,
    dtype=None,
    steps=2,
):
    """Steps of AdamW on random tokens; each stage of the first and of the second step is read."""
    model = Network(keep).to("cuda", dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    scale = torch.amp.GradScaler("cuda", enabled=scaler)
    tokens = torch.randint(1000, (accumulate, 4, 96), device="cuda")
    stage("model")
    for step in range(steps):
        for batch in tokens:
            with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
                logits = model(batch)
                loss = F.cross_entropy(logits.flatten(0, 1), batch.flatten())
            stage(f"forward {step}")
            scale.scale(loss / accumulate).backward()
            stage(f"backward {step}")
            del logits, loss
        if clip is not None:
            scale.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        scale.step(optimizer)
        scale.update()
        stage(f"step {step}")
        optimizer.zero_grad(set_to_none=set_to_none)
    stage("end")


def offload(stage):
    """Activations kept on the CPU by `save_on_cpu`."""
    model = Network().to("cuda")
    tokens = torch.randint(1000, (4, 96), device="cuda")
    stage("model")
    with torch.autograd.graph.save_on_cpu():
        loss = model(tokens).sum()
    stage("forward")
    loss.backward()
    stage("backward")


def autocast_regions(stage):
    """Nested and disabled regions, and weights whose casts are kept until the outermost one ends."""
    first, inner, second = (nn.Linear(*size).to("cuda") for size in ((128, 256), (128, 256), (256, 64)))
    x = torch.randn(32, 128, device="cuda")
    stage("model")
    with torch.autocast("cuda", dtype=torch.float16):
        hidden = first(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            hidden = inner(x) + hidden
        with torch.autocast("cuda", enabled=False):
            outputs = second(hidden.float())
        outputs = second(hidden) + outputs
        loss = (outputs.softmax(-1) + F.layer_norm(outputs, (64,))).pow(2).mean()
        stage("forward")
    stage("outside")
    loss.backward()
    stage("backward")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        first(x), first(x)
    stage("uncached")


def two_streams(stage):
    """Work on a second stream: a pool and a workspace of its own, and blocks that both streams use."""
    side = torch.cuda.Stream()
    x = torch.randn(256, 256, device="cuda")
    stage("input")
    with torch.cuda.stream(side):
        y = x @ x
    y.record_stream(torch.cuda.current_stream())
    del y
    stage("product on the side")
    torch.cuda.synchronize()
    z = x @ x
    stage("product")
    del x, z
    torch.cuda.empty_cache()
    stage("emptied")


WORKLOADS = {
    "train": train,
    "train_bf16": partial(train, dtype=torch.bfloat16),
    "train_autocast_bf16": partial(train, autocast=torch.bfloat16),
    "train_autocast_fp16_scaler": partial(train, autocast=torch.float16, scaler=True),
    "train_autocast_fp16_scaler_clip": partial(train, autocast=torch.float16, scaler=True, clip=1.0),
    "train_checkpoint": partial(train, keep="inputs"),
    "train_checkpoint_reentrant": partial(train, keep="reentrant"),
    "train_checkpoint_autocast": partial(train, keep="inputs", autocast=torch.bfloat16),
    "train_accumulate": partial(train, accumulate=3),
    "train_clip": partial(train, clip=1.0),
    "train_keep_gradients": partial(train, set_to_none=False),
    "train_offload": offload,
    "autocast_regions": autocast_regions,
    "two_streams": two_streams,
}
