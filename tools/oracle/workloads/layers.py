"""One kind of layer at a time, in a small shape, and in one large enough to need scratch memory."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F


def layer(stage, make, shape, dtype=torch.float32, channels_last=False):
    """Forward, sum and backward, twice, of the module that `make()` builds."""
    module = make().to("cuda", dtype)
    inputs = torch.randn(shape, dtype=dtype, device="cuda")
    if channels_last:
        module, inputs = (t.to(memory_format=torch.channels_last) for t in (module, inputs))
    inputs.requires_grad_()
    stage("module and input")
    for step in ("first", "second"):
        outputs = module(inputs)
        stage(f"{step} forward")
        outputs.sum().backward()
        del outputs
        stage(f"{step} backward")


def embedding(stage, tokens, vocabulary=30522, width=96):
    """An embedding's backward: past 3072 tokens it sorts them."""
    table = nn.Embedding(vocabulary, width, device="cuda")
    indices = torch.randint(vocabulary, (tokens,), device="cuda")
    stage("table and indices")
    loss = table(indices).sum()
    stage("forward")
    loss.backward()
    stage("backward")


def reductions(stage, rows, columns, dtype=torch.float32):
    """Sums, means, norms, extremes over rows, over columns and over all."""
    x = torch.randn(rows, columns, dtype=dtype, device="cuda")
    stage("input")
    for reduce in (torch.sum, torch.mean, torch.amax, torch.std, torch.argmax, torch.linalg.vector_norm):
        for dim in (None, 0, 1):
            reduce(x) if dim is None and reduce is not torch.amax else reduce(x, dim=() if dim is None else dim)
    x.max(dim=0), x.any(), (x > 0).all(), x.isnan().sum()
    stage("reductions")


def activations(stage, rows, columns):
    """Each activation forward and backward."""
    x = torch.randn(rows, columns, device="cuda", requires_grad=True)
    stage("input")
    for activation in (
        F.relu, F.gelu, partial(F.gelu, approximate="tanh"), F.silu, F.mish, F.elu, F.leaky_relu,
        F.softplus, F.glu, F.hardswish, torch.tanh, torch.sigmoid, partial(F.softmax, dim=-1),
        partial(F.log_softmax, dim=-1), partial(F.dropout, p=0.1), partial(F.relu, inplace=False), torch.exp,
        torch.sqrt, torch.square,
    ):  # fmt: skip
        activation(x).sum().backward()
        x.grad = None
    stage("activations")


def indexing(stage, rows):
    """Slices, gathers, scatters, concatenations and their backward."""
    x = torch.randn(rows, 64, device="cuda", requires_grad=True)
    index = torch.randint(rows, (rows // 2,), device="cuda")
    stage("input")
    for take in (
        lambda: x[1:-1], lambda: x[3], lambda: x[index], lambda: x[:, ::2], lambda: x.index_select(0, index),
        lambda: x.gather(0, index[:, None].expand(-1, 64)), lambda: torch.cat([x, x[:8]], dim=0),
        lambda: torch.stack([x, 2 * x]), lambda: x.split(16, dim=1)[1], lambda: x.chunk(4, dim=1)[0] * 2,
        lambda: x.masked_fill(x.detach() > 0, 0.0), lambda: torch.where(x.detach() > 0, x, 0.0),
        lambda: F.pad(x, (1, 2)), lambda: x.roll(3, 0), lambda: x.repeat(2, 1), lambda: x.repeat_interleave(2, 1),
        lambda: x.flip(0),
        lambda: x.new_zeros(rows, 64).scatter_add(0, index[:, None].expand(-1, 64), x[: rows // 2]),
        lambda: x.new_zeros(rows, 64).index_add(0, index, x[: rows // 2]), lambda: x.tril(),
        lambda: x.cumsum(0), lambda: x.t().reshape(-1), lambda: x.unfold(0, 4, 2),
        lambda: x.view(-1, 8).transpose(0, 1).contiguous(),
    ):  # fmt: skip
        take().sum().backward()
        x.grad = None
    stage("indexing")


def sorting(stage, numbers):
    """Sort, top-k, permutations, running sums: CUB's temporaries."""
    x = torch.randn(numbers, device="cuda")
    square = torch.randn(numbers // 64, 64, device="cuda")
    stage("input")
    x.sort(), x.argsort(descending=True), square.sort(dim=-1), x.topk(8), square.topk(8, dim=-1)
    x.cumsum(0), square.cumsum(1), torch.randperm(numbers, device="cuda"), x.median(), x.kthvalue(3)
    stage("sorting")


def recurrent(stage, kind):
    """An LSTM, GRU or RNN without cuDNN."""
    with torch.backends.cudnn.flags(enabled=False):
        layer(stage, partial(_FirstOutput, kind), (24, 8, 64))


class _FirstOutput(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.recurrent = kind(64, 48, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.recurrent(x)[0]


def without_cudnn(stage, **options):
    """`layer` with cuDNN off: its workspaces are the one thing that only a GPU can tell."""
    with torch.backends.cudnn.flags(enabled=False):
        layer(stage, **options)


WORKLOADS = {
    "linear_large": partial(layer, make=lambda: nn.Linear(768, 3072), shape=(16, 512, 768)),
    "linear_bf16": partial(layer, make=lambda: nn.Linear(768, 3072), shape=(16, 512, 768), dtype=torch.bfloat16),
    "layer_norm": partial(layer, make=lambda: nn.LayerNorm(768), shape=(16, 512, 768)),
    "layer_norm_tall": partial(layer, make=lambda: nn.LayerNorm(64), shape=(70_000, 64)),
    "layer_norm_bf16": partial(layer, make=lambda: nn.LayerNorm(768), shape=(16, 512, 768), dtype=torch.bfloat16),
    "rms_norm": partial(layer, make=lambda: nn.RMSNorm(768), shape=(16, 512, 768)),
    "group_norm": partial(without_cudnn, make=lambda: nn.GroupNorm(8, 64), shape=(8, 64, 28, 28)),
    "batch_norm": partial(without_cudnn, make=lambda: nn.BatchNorm2d(64), shape=(32, 64, 56, 56)),
    "batch_norm_channels_last": partial(
        without_cudnn, make=lambda: nn.BatchNorm2d(64), shape=(32, 64, 56, 56), channels_last=True
    ),
    "batch_norm_1d": partial(without_cudnn, make=lambda: nn.BatchNorm1d(256), shape=(4096, 256)),
    "dropout": partial(layer, make=lambda: nn.Dropout(0.1), shape=(16, 512, 768)),
    "softmax_bf16": partial(layer, make=lambda: nn.Softmax(-1), shape=(8, 12, 128, 128), dtype=torch.bfloat16),
    "conv2d": partial(without_cudnn, make=lambda: nn.Conv2d(16, 32, 3, padding=1), shape=(8, 16, 56, 56)),
    "conv2d_stride": partial(
        without_cudnn, make=lambda: nn.Conv2d(16, 32, 3, stride=2, bias=False), shape=(8, 16, 56, 56)
    ),
    "conv2d_pointwise": partial(without_cudnn, make=lambda: nn.Conv2d(16, 32, 1), shape=(8, 16, 56, 56)),
    "conv2d_depthwise": partial(
        without_cudnn, make=lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), shape=(8, 16, 56, 56)
    ),
    "conv1d": partial(without_cudnn, make=lambda: nn.Conv1d(16, 32, 5), shape=(8, 16, 512)),
    "conv_transpose2d": partial(
        without_cudnn, make=lambda: nn.ConvTranspose2d(16, 8, 2, stride=2), shape=(8, 16, 28, 28)
    ),
    "max_pool": partial(layer, make=lambda: nn.MaxPool2d(2), shape=(8, 16, 56, 56)),
    "average_pool": partial(layer, make=lambda: nn.AvgPool2d(2), shape=(8, 16, 56, 56)),
    "adaptive_pool": partial(layer, make=lambda: nn.AdaptiveAvgPool2d(1), shape=(8, 16, 56, 56)),
    "upsample": partial(layer, make=lambda: nn.Upsample(scale_factor=2, mode="bilinear"), shape=(8, 16, 28, 28)),
    "multihead_attention": partial(
        layer, make=lambda: nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True), shape=(8, 128, 256)
    ),
    "embedding_few": partial(embedding, tokens=2048),
    "embedding_many": partial(embedding, tokens=16384),
    "reductions_small": partial(reductions, rows=128, columns=96),
    "reductions_large": partial(reductions, rows=8192, columns=768),
    "reductions_bf16": partial(reductions, rows=4096, columns=1000, dtype=torch.bfloat16),
    "activations": partial(activations, rows=1024, columns=768),
    "indexing": partial(indexing, rows=1024),
    "sorting": partial(sorting, numbers=65536),
    "lstm": partial(recurrent, kind=nn.LSTM),
    "gru": partial(recurrent, kind=nn.GRU),
    "rnn": partial(recurrent, kind=nn.RNN),
}
