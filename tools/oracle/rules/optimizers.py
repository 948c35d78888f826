"""Random parameters through random optimizers, and gradients clipped: `python -m tools.oracle.rules optimizers`."""

from __future__ import annotations

import random

COUNT = 150  # snippets a GPU

# Options of each optimizer, each drawn or not; those common to all are below.
OPTIONS = {
    "SGD": ("momentum=0.9", "weight_decay=0.01", "momentum=0.9, nesterov=True", "momentum=0.9, dampening=0.5"),
    "Adam": ("weight_decay=0.01", "amsgrad=True", "betas=(0.5, 0.9)"),
    "AdamW": ("amsgrad=True", "weight_decay=0.0", "eps=1e-6"),
    "Adagrad": ("weight_decay=0.01", "initial_accumulator_value=0.1"),
    "Adadelta": ("weight_decay=0.01",),
    "Adamax": ("weight_decay=0.01",),
    "NAdam": ("weight_decay=0.01", "weight_decay=0.01, decoupled_weight_decay=True"),
    "RAdam": ("weight_decay=0.01", "weight_decay=0.01, decoupled_weight_decay=True"),
    "RMSprop": ("weight_decay=0.01", "centered=True", "momentum=0.9", "centered=True, momentum=0.9"),
    "Rprop": (),
    "ASGD": ("weight_decay=0.01",),
    "Adafactor": ("weight_decay=0.01",),
}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
CAPTURABLE = tuple(name for name in OPTIONS if name not in ("SGD", "Adagrad", "Adafactor"))
SIZES = (1, 2, 3, 7, 16, 33, 100, 257)
DTYPES = ("float32", "float32", "float32", "float16", "bfloat16", "float64")


def parameter(rng: random.Random, dtype: str, scalars: bool) -> str:
    """Source of a parameter: from a scalar to one of several chunks, now and then in another layout."""
    kinds = ["vector", "vector", "matrix", "matrix", "matrix", "tensor", "large", "transposed"]
    kind = rng.choice([*kinds, "scalar"] if scalars else kinds)
    size = lambda: rng.choice(SIZES)  # noqa: E731
    like = f"device='cuda', dtype=torch.{dtype}"
    source = {
        "scalar": f"torch.randn((), {like})",
        "vector": f"torch.randn({size()}, {like})",
        "matrix": f"torch.randn({size()}, {size()}, {like})",
        "tensor": f"torch.randn({size() % 20 + 1}, {size() % 9 + 1}, 3, 3, {like})",
        "large": f"torch.randn({rng.randrange(60_000, 300_000)}, {like})",
        "transposed": f"torch.randn({size()}, {size()}, {like}).t()",
    }[kind]
    if kind == "tensor" and rng.random() < 0.5:
        source += ".to(memory_format=torch.channels_last)"
    return f"nn.Parameter({source})"


def optimizer(rng: random.Random) -> tuple[str, str]:
    """The class and the options, one of its implementations among them."""
    name = rng.choice(list(OPTIONS))
    options = rng.sample(OPTIONS[name], k=min(len(OPTIONS[name]), rng.choice((0, 1, 1))))
    if rng.random() < 0.2:
        options.append("maximize=True")
    how = rng.choice(("", "", "", "foreach=False", "foreach=True", "fused=True", "capturable=True"))
    if how == "fused=True" and name not in FUSED:
        how = ""
    if how == "capturable=True" and name not in CAPTURABLE:
        how = ""
    if how == "capturable=True" and rng.random() < 0.3:
        how += ", foreach=False"
    if name == "ASGD" and "foreach=False" in how:
        how = ""  # it asks for the value of mu, which is 1 on a GPU and on the simulated one, and 0 on the oracle
    refused = how in ("", "foreach=True")
    if rng.random() < 0.15 and name in ("Adam", "AdamW", "SGD") and not refused:
        options.append("lr=torch.tensor(0.01)")
    return name, ", ".join(filter(None, [*options, how]))


def clipping(rng: random.Random) -> str:
    """A call that clips the gradients, or none."""
    norm_type = rng.choice(("1", "float('inf')", "3.0"))
    foreach = rng.choice((None, True, False))
    return rng.choice(
        (
            "",
            "",
            "nn.utils.clip_grad_norm_(params, 1.0)",
            f"nn.utils.clip_grad_norm_(params, 1.0, norm_type={norm_type})",
            "nn.utils.clip_grad_norm_(params, 1.0, foreach=False)",
            f"nn.utils.clip_grad_value_(params, 0.5, foreach={foreach})",
        )
    )


def draw(rng: random.Random) -> str:
    """Two steps, or three."""
    dtypes = [rng.choice(DTYPES)] if rng.random() < 0.8 else rng.sample(("float32", "bfloat16", "float64"), k=2)
    name, options = optimizer(rng)
    scalars = name != "Rprop"  # which indexes with a mask: of a scalar, CUDA reads its value
    params = [parameter(rng, rng.choice(dtypes), scalars) for _ in range(rng.randrange(1, 6))]
    lines = [f"params = [{', '.join(params)}]"]
    comma = ", " if options else ""
    if rng.random() < 0.2:
        lines.append("groups = [{'params': params[:1]}, {'params': params[1:], 'weight_decay': 0.1}]")
        lines.append(f"optimizer = torch.optim.{name}(groups{comma}{options})")
    else:
        lines.append(f"optimizer = torch.optim.{name}(params{comma}{options})")
    lines.append(f"for step in range({rng.choice((2, 2, 3))}):")
    gradients = rng.choice(
        (
            "for p in params: p.grad = torch.randn_like(p)",
            "for p in params: p.grad = torch.randn(p.shape, device='cuda', dtype=p.dtype)",
            "sum((p * p).sum().float() for p in params).backward()",
            "for p in params[step % 2:]: p.grad = torch.ones_like(p)",
        )
    )
    body = [gradients, clipping(rng), "optimizer.step()"]
    body.append(
        rng.choice(("optimizer.zero_grad()", "optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"))
    )
    lines += [f"    {line}" for line in body if line]
    return "\n".join(lines)
