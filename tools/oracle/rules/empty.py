"""Snippets of tensors without elements, as where a mask selects nothing: `python -m tools.oracle.rules empty`."""

from __future__ import annotations

import random

COUNT = 150  # snippets a GPU


LOSSES = (
    "mse_loss(x, r)", "smooth_l1_loss(x, r)", "huber_loss(x, r)", "l1_loss(x, r)", "binary_cross_entropy(x, r)",
    "binary_cross_entropy_with_logits(x, r)", "kl_div(x, r)", "soft_margin_loss(x, r)", "poisson_nll_loss(x, r)",
    "hinge_embedding_loss(x, r)",
)  # fmt: skip
OF_ROWS = (
    "F.linear(x, w, b)", "F.gelu(x @ w.T)", "F.layer_norm(x, (W,), g, g)", "F.rms_norm(x, (W,), g)", "x.softmax(1)",
    "x.log_softmax(0)", "F.dropout(x, 0.3)", "x.cumsum(0)", "x.sum(0)", "x.mean()", "x.norm()", "x.std(1)",
    "x.sort(0)[0]", "x.topk(2, 1)[0]", "torch.cat([x, g[None]])", "x.clamp(0, 1) * x", "x.float().pow(2)",
    "x.T.contiguous()", "x.repeat_interleave(2, 0)", "F.normalize(x)",
    "torch.where(x > 0, x, 0.0)", "torch.cdist(x, w)", "x.flip(0)",
    "F.cosine_similarity(x, x.detach())", "x.masked_fill(x > 0, 1.0)", "x.view(ROWS, W, 1).bmm(x.view(ROWS, 1, W))",
)  # fmt: skip
BY_INDEX = (
    "t.index_add(0, i, x)", "t.clone().index_add_(0, i, x)", "t.index_copy(0, i, x)", "t.index_fill(0, i, 1.0)",
    "t.index_reduce(0, i, x, 'amax')", "t.clone().index_reduce_(0, i, x, 'mean')", "t.index_put((i,), x)", "t[i]",
    "t.index_put((i,), x, accumulate=True)", "t.index_select(0, i)", "t.scatter_add(0, i[:, None].expand(ROWS, W), x)",
    "t.scatter_reduce(0, i[:, None].expand(ROWS, W), x, 'amax')", "t.gather(0, i[:, None].expand(ROWS, W))",
    "F.embedding(i, t)", "t.take(i)", "F.one_hot(i, 7)", "F.cross_entropy(x, i)", "F.nll_loss(x, i, reduction='sum')",
    "F.embedding_bag(i, t, torch.zeros(2, dtype=torch.long, device='cuda'), mode='sum')",
)  # fmt: skip
SAMPLED = (
    "torch.multinomial(torch.ones(ROWS, W, device='cuda'), 2)",
    "torch.multinomial(torch.ones(ROWS, W, device='cuda'), 2, replacement=True)",
    "torch.bernoulli(x.detach())",
    "x.argmax(1)",
)
OF_IMAGES = (
    "F.conv2d(x, k, g)", "F.max_pool2d(x, 2)", "F.avg_pool2d(x, 2)", "F.interpolate(x, scale_factor=2)",
    "F.interpolate(x, scale_factor=2, mode='bilinear')", "F.adaptive_avg_pool2d(x, 1)", "F.group_norm(x, 2)",
    "F.pad(x, (1, 1, 1, 1))", "F.pixel_shuffle(x, 2)", "F.relu(x, inplace=False)",
)  # fmt: skip


def draw(rng: random.Random) -> str:
    """An operator of rows, images or attention of which there are none, or a few; and its gradient."""
    dtype = rng.choice(["torch.float32", "torch.float32", "torch.bfloat16"])
    options = f"dtype={dtype}, device='cuda'"
    kind = rng.choice(["loss", "rows", "rows", "index", "index", "sampled", "images", "attention", "attention"])
    wide, rows = rng.choice([4, 5, 32]), rng.choice([0, 0, 0, 3])
    x = f"x = torch.rand({rows}, {wide}, {options}, requires_grad=True)"
    if kind == "loss":
        options = options.replace("torch.bfloat16", "torch.float32")
        x = f"x = torch.rand({rows}, {wide}, {options}, requires_grad=True)"
        call = rng.choice(LOSSES)[:-1] + f", reduction={rng.choice(['none', 'mean', 'sum'])!r})"
        code = f"{x}; r = torch.rand({rows}, {wide}, {options}); y = F.{call}"
    elif kind == "rows":
        given = f"w = torch.rand(6, {wide}, {options}, requires_grad=True); b = torch.rand(6, {options})"
        code = f"{x}; {given}; g = torch.rand({wide}, {options}, requires_grad=True); y = {rng.choice(OF_ROWS)}"
    elif kind == "index":
        given = f"i = torch.zeros({rows}, dtype=torch.long, device='cuda')"
        code = f"{x}; {given}; t = torch.rand(7, {wide}, {options}, requires_grad=True); y = {rng.choice(BY_INDEX)}"
    elif kind == "sampled":
        code = f"{x}; y = {rng.choice(SAMPLED)}"
    elif kind == "images":
        given = f"k = torch.rand(8, 4, 3, 3, {options}, requires_grad=True); g = torch.rand(8, {options})"
        x = f"x = torch.rand({rows}, 4, 6, 6, {options}, requires_grad=True)"
        code = f"torch.backends.cudnn.enabled = False; {x}; {given}; y = {rng.choice(OF_IMAGES)}"
    else:
        batch, queries, keys = rng.choice([(0, 3, 3), (2, 0, 4), (2, 3, 0), (0, 0, 0), (2, 3, 5)])
        size = rng.choice([8, 16, 64])
        x = f"x = torch.rand({batch}, 2, {queries}, {size}, {options}, requires_grad=True)"
        given = f"k = torch.rand({batch}, 2, {keys}, {size}, {options}, requires_grad={rng.random() < 0.5})"
        code = f"{x}; {given}; y = F.scaled_dot_product_attention(x, k, k)"
    backward = rng.choice(["", "y.sum().backward() if y.requires_grad else None"])
    return f"{code}; {backward}; tell(y)".replace("ROWS", str(rows)).replace("W", str(wide)).replace("; ;", ";")
