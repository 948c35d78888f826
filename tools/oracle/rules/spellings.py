"""Random calls that scripts spell in a way of their own: windows, storages, the constructors and default types of old,
absolute values of complex numbers, images of the same size, CTC loss.

`python -m tools.oracle.rules spellings --help`
"""

from __future__ import annotations

import random

from tools.oracle.rules.indexing import some

COUNT = 120  # snippets a GPU


def window(rng: random.Random) -> str:
    kind = rng.choice(("hann", "hamming", "blackman", "bartlett", "kaiser"))
    length = rng.choice((0, 1, 2, some(rng, 5000), some(rng, 5000)))
    options = [rng.choice(("", "False", "periodic=False", "periodic=True"))]
    if kind == "hamming" and options[0] == "False":
        options.append(rng.choice(("0.5", "0.5, 0.4")))
    if kind == "kaiser" and options[0] == "False":
        options.append("beta=3.0")
    dtype = rng.choice(("", "", "dtype=torch.half", "dtype=torch.bfloat16", "dtype=torch.double", "dtype=torch.long"))
    given = ", ".join(filter(None, [str(length), *options, dtype, "device='cuda'"]))
    return f"w = torch.{kind}_window({given})\ntell(w)"


def magnitude(rng: random.Random) -> str:
    dtype = rng.choice(("cfloat", "cfloat", "cdouble", "float32", "int64"))
    view = rng.choice(("", "", "[::2]", "[:, 1:]", ".t()"))
    x = f"z = torch.ones({some(rng, 300) + 2}, {some(rng, 300) + 2}, device='cuda', dtype=torch.{dtype}){view}\n"
    call = rng.choice(("z.abs()", "torch.angle(z)", "z.abs().sum(0)", "torch.abs(z, out=torch.empty_like(z.real))"))
    if dtype == "int64":
        call = call.replace("z.real", "z")
    elif rng.random() < 0.4 and "out" not in call:
        return x + f"z.requires_grad_()\n({call}).sum().backward()\ntell(z.grad)"
    return x + f"y = {call}\ntell(y)"


def storage(rng: random.Random) -> str:
    n, device = some(rng, 9000), rng.choice(("'cuda'", "'cuda:0'", "torch.device('cuda', 0)"))
    return rng.choice(
        (
            f"s = torch.UntypedStorage({n}, device={device})\ntell(s)",
            f"s = torch.UntypedStorage(device={device})\ntell(s)",
            f"s = torch.TypedStorage({n}, dtype=torch.half, device={device})\ntell(s)",
            f"s = torch.UntypedStorage({4 * n}, device={device})\nt = torch.empty(0, device='cuda').set_(s)\ntell(t)",
            f"s = torch.UntypedStorage({n}, device={device})\ns.resize_({2 * n})\nt = s.cpu()\ntell(s, t)",
        )
    )


def constructor(rng: random.Random) -> str:
    sizes = f"{some(rng, 900)}", f"{some(rng, 90)}, {some(rng, 90)}", "[1.0, 2.0]", "", "torch.Size([2, 3])"
    made = f"torch.Tensor({rng.choice(sizes)})"
    made = rng.choice((made, made, "torch.tensor([1.0])", "torch.zeros(3).new(2)"))
    default = "torch.set_default_tensor_type"
    kind = rng.choice(("Float", "Half", "Double", "BFloat16"))
    return f"{default}(torch.cuda.{kind}Tensor)\ntry:\n  tell({made})\nfinally:\n  {default}(torch.FloatTensor)"


def elsewhere(rng: random.Random) -> str:
    """A tensor that is to take over the storage of another device."""
    here, there = rng.sample(("cuda", "cpu"), 2)
    source = rng.choice(("", ".untyped_storage()"))
    return f"x = torch.ones(3, device='{here}')\nx.set_(torch.ones({some(rng, 9)}, device='{there}'){source})"


def resized(rng: random.Random) -> str:
    """Images of another size, or of the same, however they lie."""
    shape = [some(rng, 3), rng.choice((3, 4, 7, 16)), some(rng, 20), some(rng, 20)]
    size = rng.choice((shape[2:], [2 * shape[2], shape[3]], [some(rng, 40), some(rng, 40)]))
    mode = rng.choice(("nearest", "nearest-exact", "bilinear", "bicubic"))
    layouts = "", ".contiguous(memory_format=torch.channels_last)", ".transpose(0, 1).contiguous().transpose(0, 1)"
    x = f"x = torch.ones({shape}, device='cuda'){rng.choice(layouts)}.requires_grad_()\n"
    grad = f"y.backward(torch.ones_like(y){rng.choice(layouts)})"
    return x + f"y = F.interpolate(x, size={size}, mode='{mode}')\n{grad}\ntell(y, x.grad)"


def sequences(rng: random.Random) -> str:
    """CTC loss with lengths of every kind, without cuDNN."""
    batch, time, longest = some(rng, 6), 20 + some(rng, 40), some(rng, 15)
    lengths = [rng.randint(1, longest) for _ in range(batch)]
    inputs = [rng.randint(18, time) for _ in range(batch)]
    rows = rng.random() < 0.6
    shape = [batch, longest] if rows else [sum(lengths)]
    dtype, kind = rng.choice(("float32", "float32", "float64")), rng.choice(("", ".int()"))
    target = f"torch.ones({shape}, dtype=torch.int64){kind}{rng.choice(('', '.cuda()'))}"
    kinds = "{}", "torch.tensor({})", "torch.tensor({}, dtype=torch.int32)"
    form = rng.choice(kinds)
    options = f"reduction={rng.choice(('mean', 'sum', 'none'))!r}, zero_infinity={rng.random() < 0.4}"
    return (
        f"x = torch.ones({time}, {batch}, 20, device='cuda', dtype=torch.{dtype}, requires_grad=True)\nt = {target}\n"
        "with torch.backends.cudnn.flags(enabled=False):\n"
        f"  y = F.ctc_loss(x.log_softmax(-1), t, {form.format(inputs)}, {form.format(lengths)}, {options})\n"
        "tell(y)\ny.sum().backward()\ntell(x.grad)"
    )


DRAWINGS = [
    sequences, sequences, sequences,
    resized, resized, resized, window, window, window, magnitude, magnitude, storage, storage, constructor, constructor,
    elsewhere,
]  # fmt: skip
