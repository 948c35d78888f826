"""Every spelling of every move between host and device: `python -m tools.oracle.rules moves --help`.

What is moved (tensors, modules, packed sequences, storages, files), how it is said, and what stood before are
multiplied out; where the product is too large, it is drawn from with a fixed seed. Each snippet tells what became of
its values (device, dtype, shape, strides, gradient), which is compared besides the allocator's events.
"""

from __future__ import annotations

import random
from itertools import cycle, product

from tools.oracle.move_scripts import SCRIPTS

GPU_NAMES = (
    "'cuda'",
    "'cuda:0'",
    "0",
    "torch.device('cuda')",
    "torch.device('cuda', 0)",
    "torch.device('cuda:0')",
    "torch.device(0)",
    "torch.device(type='cuda', index=0)",
    "torch.cuda.current_device()",
)
HOST_NAMES = ("'cpu'", "torch.device('cpu')", "'cpu:0'")
NAMES = GPU_NAMES + HOST_NAMES

# Tensors before they move; DEVICE stands for where they are.
TENSORS = (
    "torch.ones(30, 20, device=DEVICE)",
    "torch.ones(20, 30, device=DEVICE).t()",
    "torch.ones(30, 40, device=DEVICE)[:, ::2]",
    "torch.ones(31, 20, device=DEVICE)[1:]",
    "torch.ones(1, 20, device=DEVICE).expand(30, 20)",
    "torch.ones(2, 3, 5, 7, device=DEVICE)",
    "torch.ones(2, 3, 5, 7, device=DEVICE).to(memory_format=torch.channels_last)",
    "torch.ones((), device=DEVICE)",
    "torch.ones(0, 4, device=DEVICE)",
    "torch.ones(30, 20, device=DEVICE, dtype=torch.bfloat16)",
    "torch.ones(600, device=DEVICE, dtype=torch.int64)",
    "torch.ones(600, device=DEVICE, dtype=torch.bool)",
    "torch.ones(30, 20, device=DEVICE, dtype=torch.complex64)",
    "torch.ones(30, 20, device=DEVICE, requires_grad=True)",
    "torch.ones(30, 20, device=DEVICE, requires_grad=True) * 2",
    "nn.Parameter(torch.ones(30, 20, device=DEVICE))",
)
DTYPES = (None, None, "torch.float32", "torch.float16", "torch.float64", "torch.int32", "float", "torch.bool")
FORMATS = (None, None, None, "torch.preserve_format", "torch.contiguous_format", "torch.channels_last")
AFTER = """
tell(y, y is x)
if y.requires_grad:
    y.sum().backward()
    tell(x.grad)
"""


def arguments(rng: random.Random, given: list[tuple[str, str | None]]) -> str:
    """A call's arguments, each (name, source or None for absent): the first ones by position, the others by keyword."""
    by_position = 0
    while by_position < len(given) and given[by_position][1] is not None and rng.random() < 0.6:
        by_position += 1
    named = [f"{name}={value}" for name, value in given[by_position:] if value is not None]
    rng.shuffle(named)
    return ", ".join([value for _, value in given[:by_position]] + named)


def to_call(rng: random.Random, device: str | None, *, copy: bool = True, formats: bool = True, dtypes=DTYPES) -> str:
    """`to(...)` in one of its three forms."""
    dtype = rng.choice(dtypes)
    rest = [("non_blocking", rng.choice((None, None, "True", "False")))]
    if copy:
        rest.append(("copy", rng.choice((None, None, "True", "False"))))
    form = rng.random()
    if device is not None and form < 0.15:
        other = f"torch.empty(3, device={device}" + (f", dtype={dtype})" if dtype else ")")
        given = [("tensor", other), *rest]
    elif dtype is not None and form < 0.3:
        given = [("dtype", dtype), *rest]
    else:
        given = [("device", device), ("dtype", dtype), *rest]
        if device is None and rng.random() < 0.3:
            given[0] = ("device", "None")
    text = arguments(rng, given)
    layout = rng.choice(FORMATS) if formats else None
    return f"to({', '.join(filter(None, [text, layout and f'memory_format={layout}']))})"


def cuda_call(rng: random.Random) -> str:
    given = [("device", rng.choice((None, "None", *GPU_NAMES))), ("non_blocking", rng.choice((None, "True", "False")))]
    layout = rng.choice(FORMATS[1:])
    return f"cuda({', '.join(filter(None, [arguments(rng, given), layout and f'memory_format={layout}']))})"


def cpu_call(rng: random.Random) -> str:
    layout = rng.choice(FORMATS[1:])
    return f"cpu({f'memory_format={layout}' if layout else ''})"


TYPES = ("torch.cuda.FloatTensor", "torch.FloatTensor", "torch.cuda.HalfTensor", "torch.LongTensor")
CASTS = (
    "float()",
    "half()",
    "bfloat16()",
    "double()",
    "long()",
    "bool()",
    "clone()",
    "detach()",
    "contiguous()",
)


def type_call(rng: random.Random) -> str:
    kind = rng.choice((*TYPES, *(f"'{one}'" for one in TYPES), "torch.float16", "torch.int32", "torch.cuda.LongTensor"))
    return f"type({arguments(rng, [('dtype', kind), ('non_blocking', rng.choice((None, 'True', 'False')))])})"


def tensor_move(rng: random.Random, tensor: str, here: str) -> str:
    kind = rng.random()
    if kind < 0.6:
        move = to_call(rng, rng.choice((None, *NAMES)))
    elif kind < 0.7:
        move = cuda_call(rng)
    elif kind < 0.78:
        move = cpu_call(rng)
    elif kind < 0.9:
        move = type_call(rng)
    elif kind < 0.95:
        move = f"type_as(torch.ones(3, device={rng.choice(NAMES)}, dtype={rng.choice(DTYPES)}))"
    else:
        move = rng.choice(CASTS)
    return f"x = {tensor.replace('DEVICE', here)}\ny = x.{move}{AFTER}"


def tensors(rng: random.Random):
    for tensor, here, _ in product(TENSORS, ("'cpu'", "'cuda'"), range(40)):
        yield tensor_move(rng, tensor, here)


FACTORIES = (
    "torch.empty(30, 20, OPTIONS)",
    "torch.empty((30, 20), OPTIONS)",
    "torch.empty_strided((30, 20), (1, 30), OPTIONS)",
    "torch.empty_permuted((2, 3, 5), (0, 2, 1), OPTIONS)",
    "torch.zeros(30, 20, OPTIONS)",
    "torch.ones(30, 20, OPTIONS)",
    "torch.full((30, 20), 2, OPTIONS)",
    "torch.rand(30, 20, OPTIONS)",
    "torch.randn(30, 20, OPTIONS)",
    "torch.randint(5, (30, 20), OPTIONS)",
    "torch.randint(2, 5, (30, 20), OPTIONS)",
    "torch.randperm(300, OPTIONS)",
    "torch.arange(300, OPTIONS)",
    "torch.arange(3, 300, 2, OPTIONS)",
    "torch.linspace(0, 1, 300, OPTIONS)",
    "torch.logspace(0, 1, 300, OPTIONS)",
    "torch.eye(30, OPTIONS)",
    "torch.tril_indices(30, 20, OPTIONS)",
    "torch.hann_window(300, OPTIONS)",
    "torch.tensor([1., 2.], OPTIONS)",
    "torch.tensor(3, OPTIONS)",
    "torch.tensor(torch.ones(300), OPTIONS)",
    "torch.as_tensor([1, 2], OPTIONS)",
    "torch.as_tensor(torch.ones(300), OPTIONS)",
    "torch.as_tensor(torch.ones(300, device='cuda'), OPTIONS)",
    "torch.as_tensor(numpy.ones(300), OPTIONS)",
    "torch.asarray([1., 2.], OPTIONS)",
    "torch.asarray(torch.ones(300), OPTIONS)",
    "torch.asarray(torch.ones(300, device='cuda'), OPTIONS)",
    "torch.asarray(numpy.ones(300), OPTIONS)",
    "torch.scalar_tensor(3, OPTIONS)",
    "torch.empty_like(like, OPTIONS)",
    "torch.zeros_like(like, OPTIONS)",
    "torch.ones_like(like, OPTIONS)",
    "torch.full_like(like, 2, OPTIONS)",
    "torch.rand_like(like, OPTIONS)",
    "torch.randn_like(like, OPTIONS)",
    "torch.randint_like(like, 5, OPTIONS)",
    "like.new_empty(30, 20, OPTIONS)",
    "like.new_empty((30, 20), OPTIONS)",
    "like.new_empty_strided((30, 20), (1, 30), OPTIONS)",
    "like.new_zeros(30, 20, OPTIONS)",
    "like.new_ones((30, 20), OPTIONS)",
    "like.new_full((30, 20), 2., OPTIONS)",
    "like.new_tensor([1., 2.], OPTIONS)",
    "like.new_tensor(torch.ones(300), OPTIONS)",
    "like.new_tensor(like, OPTIONS)",
    "nn.Linear(30, 20, OPTIONS).weight",
    "nn.Embedding(30, 20, OPTIONS).weight",
    "nn.LayerNorm(30, OPTIONS).weight",
    "nn.Parameter(torch.empty(30, 20, OPTIONS))",
)
# How a device is named beside a call: CALL stands for it.
AROUND = (
    "y = CALL",
    "with torch.device(DEVICE):\n    y = CALL",
    "torch.set_default_device(DEVICE)\ntry:\n    y = CALL\nfinally:\n    torch.set_default_device(None)",
    "def make():\n    return CALL\ny = torch.device(DEVICE)(make)()",
    "with torch.device('cpu'), torch.device(DEVICE):\n    y = CALL",
    "with torch.cuda.device(0):\n    y = CALL",
)


def factories(rng: random.Random):
    for factory, here, around, _ in product(FACTORIES, ("'cpu'", "'cuda'"), AROUND, range(3)):
        options = []
        named = rng.choice((None, "None", *NAMES))
        if named and (around == AROUND[0] or rng.random() < 0.4):
            options.append(f"device={named}")
        if rng.random() < 0.3 and "_indices" not in factory and "window" not in factory:
            options.append(f"dtype={rng.choice(('torch.float32', 'torch.float16', 'torch.float64'))}")
        if rng.random() < 0.2 and not factory.startswith("nn"):
            options.append("requires_grad=True" if "float" in " ".join(options) else "requires_grad=False")
        rng.shuffle(options)
        call = factory.replace(", OPTIONS", "".join(f", {one}" for one in options))
        shape = rng.choice(("30, 20", "2, 3, 5, 7"))
        made = around.replace("CALL", call).replace("DEVICE", rng.choice(NAMES))
        yield f"import numpy\nlike = torch.ones({shape}, device={here})\n{made}\ntell(y)"


MODULES = (
    "nn.Linear(30, 20, device=DEVICE)",
    "nn.Linear(30, 20, device=DEVICE).half()",
    "nn.Sequential(nn.Conv2d(3, 4, 3, device=DEVICE), nn.BatchNorm2d(4, device=DEVICE))",
    "nn.LSTMCell(5, 6, device=DEVICE)",
    "nn.ParameterList([torch.ones(5, device=DEVICE)])",
    "tied(nn.Linear(30, 20, device=DEVICE))",
    "with_grad(nn.Linear(30, 20, device=DEVICE))",
    "with_grad(tied(nn.Linear(30, 20, device=DEVICE)))",
    "frozen(nn.Linear(30, 20, device=DEVICE))",
    "buffered(nn.Linear(30, 20, device=DEVICE))",
)
HELPERS = """
def tied(module):
    both = nn.Sequential(module, type(module)(30, 20, device=module.weight.device))
    both[1].weight = both[0].weight
    return both

def with_grad(module):
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    return module

def frozen(module):
    return module.requires_grad_(False)

def buffered(module):
    module.register_buffer('positions', torch.arange(7, device=module.weight.device))
    module.register_buffer('mask', torch.ones(5, 5, device=module.weight.device), persistent=False)
    module.register_buffer('nothing', None)
    return module
"""
UNDER = (
    "MOVE",
    "MOVE",
    "with torch.no_grad():\n    MOVE",
    "with torch.inference_mode():\n    MOVE",
    "with torch.device('cuda'):\n    MOVE",
    "torch.__future__.set_overwrite_module_params_on_conversion(True)\ntry:\n    MOVE\nfinally:\n"
    "    torch.__future__.set_overwrite_module_params_on_conversion(False)",
    "torch.__future__.set_swap_module_params_on_conversion(True)\ntry:\n    MOVE\nfinally:\n"
    "    torch.__future__.set_swap_module_params_on_conversion(False)",
)
MODULE_DTYPES = (None, None, None, "torch.float32", "torch.float16", "torch.bfloat16", "torch.float64")


MODULE_CASTS = (
    "cpu()",
    "half()",
    "float()",
    "bfloat16()",
    "double()",
    "type(torch.float16)",
    "type('torch.cuda.HalfTensor')",
    "type(torch.cuda.FloatTensor)",
)


def module_call(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.65:
        return to_call(rng, rng.choice((None, *NAMES)), copy=False, dtypes=MODULE_DTYPES)
    if kind < 0.8:
        return f"cuda({arguments(rng, [('device', rng.choice((None, 'None', *GPU_NAMES)))])})"
    if kind < 0.9:
        return f"to_empty({arguments(rng, [('device', rng.choice(NAMES))])})"
    return rng.choice(MODULE_CASTS)


def modules(rng: random.Random):
    for module, here, under, _ in product(MODULES, ("'cpu'", "'cuda'"), UNDER, range(5)):
        move = under.replace("MOVE", f"n = m.{module_call(rng)}")
        yield (
            f"{HELPERS}\nm = {module.replace('DEVICE', here)}\nbefore = list(m.parameters())\n{move}\n"
            "tell(n, n is m, [a is b for a, b in zip(before, m.parameters())])"
        )


PACKED = "torch.nn.utils.rnn.pack_padded_sequence(torch.ones(4, 3, 5, device=DEVICE), torch.tensor([4, 3, 1]))"
PACKED_CALLS = ("cuda()", "cuda(non_blocking=True)", "cpu()", "half()", "double()", "float()", "pin_memory()")


def packed(rng: random.Random):
    for here, sort, _ in product(("'cpu'", "'cuda'"), (True, False), range(30)):
        source = PACKED.replace("DEVICE", here)
        if not sort:
            source = source.replace("torch.tensor([4, 3, 1])", "torch.tensor([3, 1, 4]), enforce_sorted=False")
        call = (
            rng.choice(PACKED_CALLS) if rng.random() < 0.3 else to_call(rng, rng.choice((None, *NAMES)), formats=False)
        )
        yield f"x = {source}\ny = x.{call}\ntell(y, y is x, y.is_cuda)"


STORAGE_CALLS = (
    "cuda()",
    "cuda(0)",
    "cuda('cuda')",
    "cuda(torch.device('cuda', 0))",
    "cpu()",
    "clone()",
    "is_cuda",
    "device",
)


def storages(rng: random.Random):
    for here, call in product(
        ("'cpu'", "'cuda'"), (*STORAGE_CALLS, "get_device()", *(f"to(device={name})" for name in NAMES))
    ):
        yield f"x = torch.ones(30, device={here}).untyped_storage()\ny = x.{call}\ntell(y, y is x)"


SAVED = (
    "torch.ones(30, 20)",
    "{'a': torch.ones(30), 'b': torch.ones(20).half(), 'c': 3}",
    "nn.Linear(30, 20).state_dict()",
    "nn.Parameter(torch.ones(30))",
)
PLACES = (
    *(name for name in NAMES if name != "0" and "current" not in name),
    "None",
    "{'cpu': 'cuda:0'}",
    "{'cpu': 'cuda'}",
    "lambda s, l: s.cuda()",
    "lambda s, l: s",
    "lambda s, l: s.cuda(0)",
    "lambda storage, loc: storage.to(device='cuda')",
)


def files(rng: random.Random):
    for saved, place, weights_only in product(SAVED, PLACES, ("", ", weights_only=True", ", weights_only=False")):
        yield (
            f"import io\nfile = io.BytesIO()\ntorch.save({saved}, file)\nfile.seek(0)\n"
            f"y = torch.load(file, map_location={place}{weights_only})\ntell(y)"
        )


def snippets() -> list[str]:
    rng = random.Random(13)
    families = (tensors, factories, modules, packed, storages, files)
    return [code for family in families for code in family(rng)] + SCRIPTS.strip("\n").split("\n\n")


FOUND = snippets()
COUNT = len(FOUND)
_following = cycle(FOUND)


def draw(rng: random.Random) -> str:
    """The next of them: they are not drawn at random."""
    return next(_following)
