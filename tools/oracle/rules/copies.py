"""Copies between host and device, and tensors made from data: `python -m tools.oracle.rules copies --help`."""

from __future__ import annotations

import random

COUNT = 150  # snippets a GPU
DTYPES = ("float32", "float32", "float32", "float16", "bfloat16", "float64")

# One in each paragraph.
FIXED = """
x = torch.randn(100, 200, device='cuda')
x[3:5] = 1.
x[3:5] = torch.ones(200)
x[3] = torch.tensor(2.)
x[3] = torch.tensor(2., device='cuda')
x[2, 3] = 5
x[...] = 1
x[:] = torch.zeros(100, 200, device='cuda').half()

x = torch.randn(100, 200, device='cuda')
x[torch.tensor([1, 2])] = torch.ones(2, 200, device='cuda')
y = x[[1, 2, 3]]
z = x[torch.arange(5)]

a = torch.tensor([1., 2., 3.], device='cuda')
b = torch.tensor(3, device='cuda')
c = torch.as_tensor([1, 2], device='cuda')
d = torch.tensor([[1, 2], [3, 4]], device='cuda', dtype=torch.half)
e = torch.scalar_tensor(3., device='cuda')
f = a.new_tensor([1, 2])
g = a.new_zeros(3)
h = a.new_full((3,), 2.)

import numpy
a = torch.from_numpy(numpy.ones((3, 4))).cuda()
b = torch.as_tensor(numpy.ones((3, 4)), device='cuda')
c = torch.tensor(numpy.ones((3, 4)), device='cuda', dtype=torch.float32)

x = torch.ones(5, device='cuda')
a = torch.tensor(3.).cuda() * x
b = torch.tensor(3.) * x
c = x / torch.tensor(3)
d = x.add_(torch.tensor(3.))
e = x.mul(torch.tensor(3., dtype=torch.float64))

x = torch.randn(100, device='cuda')
x.resize_(50)
x.resize_(200)
x.untyped_storage().resize_(0)
x.untyped_storage().resize_(1000)

x = torch.randn(100, device='cuda')
y = torch.empty(0, device='cuda')
y.set_(x)
del x
z = torch.empty(0, device='cuda')
z.set_(y.untyped_storage(), 0, (10,), (1,))

x = torch.randn(100, device='cuda')
y = torch.empty(50, device='cuda')
torch.add(x, 1, out=y)
torch.mul(x, x, out=y)
torch.exp(x, out=x)
torch.cat([x, x], out=y)

x = torch.randn(10, 10, device='cuda')
y = torch.empty(20, 20, device='cuda')[::2, ::2]
torch.add(x, x, out=y)
z = torch.empty(10, 10, device='cuda', dtype=torch.float64)
torch.add(x, x, out=z)
torch.sum(x, 0, out=z[0])

x = nn.Parameter(torch.randn(10, 10))
x.data = x.data.cuda()
x.data = torch.randn(5, device='cuda')

x = torch.randn(10, 10, device='cuda').clone()
y = x.contiguous()
z = x.t().contiguous()
w = x.t().clone()
v = x[::2].clone(memory_format=torch.contiguous_format)
x.fill_(3)
x.zero_()
x.fill_(torch.tensor(1.))
x.fill_(torch.tensor(1., device='cuda'))

a = torch.arange(10, device='cuda')
b = torch.linspace(0, 1, 11, device='cuda')
c = torch.eye(5, device='cuda')
d = torch.full((3, 4), 2., device='cuda')
e = torch.randint(5, (10,), device='cuda')
f = torch.randn_like(d)
g = torch.ones_like(d, dtype=torch.half)
h = torch.tril_indices(4, 4, device='cuda')
i = torch.empty_strided((3, 4), (1, 3), device='cuda')

x = torch.randn(10, device='cuda')
y = x.to(torch.half).float().double().int().bool()
z = x.type(torch.float64)

x = torch.randn(10, requires_grad=True)
y = x.cuda()
(y * 2).sum().backward()

x = torch.randn(10, device='cuda', requires_grad=True)
y = x.cpu()
(y * 2).sum().backward()

x = torch.randn(10, 20, device='cuda', requires_grad=True)
with torch.autograd.graph.save_on_cpu():
    y = (x * x).exp()
y.sum().backward()

x = torch.randn(10, 20, device='cuda', requires_grad=True)
with torch.autograd.graph.save_on_cpu(pin_memory=True):
    y = (x.t() @ x).exp().relu()
y.sum().backward()

x = torch.randn(10).pin_memory().to('cuda', non_blocking=True)
h = torch.empty(10, pin_memory=True)
h.copy_(x, non_blocking=True)
y = h.to('cuda', non_blocking=True)

s = torch.cuda.Stream()
x = torch.randn(1000, device='cuda')
with torch.cuda.stream(s):
    y = x * 2
    x.record_stream(s)
del x
z = torch.randn(1000, device='cuda')
torch.cuda.synchronize()
w = torch.randn(1000, device='cuda')

m = nn.Linear(3, 4).cuda()
m.cpu()
m.half().cuda()
m.to('cuda', torch.float32)
m.double()

m = nn.Linear(3, 4, device='cuda')
n = nn.Linear(3, 4, device='cuda')
n.load_state_dict(m.state_dict())
n.load_state_dict({name: value.cpu() for name, value in m.state_dict().items()})

m = nn.Linear(3, 4)
m.to(torch.device('cuda'))
m.weight.grad = torch.ones(4, 3, device='cuda')
m.to('cpu')
m.zero_grad()

import copy
m = nn.Linear(3, 4, device='cuda')
n = copy.deepcopy(m)
t = copy.copy(m.weight)

m = nn.Module()
m.register_buffer('b', torch.arange(5))
m.cuda()

a = [torch.randn(3, 4, device='cuda'), torch.randn(5, 6, device='cuda').t()]
torch._foreach_copy_([torch.empty(3, 4), torch.empty(6, 5)], a)
torch._foreach_copy_(a, [torch.empty(3, 4), torch.empty(6, 5)])

x = torch.arange(10, device='cuda')
y = [x * 0.5, x / 2, x // 2, x ** 2, x * 1j, x + True, x - 1.5, 2 ** x, x.pow(2.5), x.clamp(1, 5), x.eq(3), x & 1, ~x]

x = torch.randn(10, device='cuda').half()
y = [x * 0.5, 1 - x, x.add(x, alpha=2), x.lerp(x, 0.5), x.addcmul(x, x, value=2), x.rsub(1), 2 / x, x > 0, x.maximum(x)]
"""


def laid_out(rng: random.Random, shape: tuple[int, int], dtype: str, device: str) -> str:
    """Source of a matrix in some layout."""
    rows, columns = shape
    like = f"device='{device}', dtype=torch.{dtype}"
    return rng.choice(
        (
            f"torch.randn({rows}, {columns}, {like})",
            f"torch.randn({rows}, {columns}, {like})",
            f"torch.randn({columns}, {rows}, {like}).t()",
            f"torch.randn({rows}, {2 * columns}, {like})[:, ::2]",
            f"torch.randn({rows}, {columns + 2}, {like})[:, 1:-1]",
            f"torch.randn({rows + 1}, {columns}, {like})[1:]",
        )
    )


def transfer(rng: random.Random) -> str:
    """A copy from the host to the device, or back, by `to` or `copy_`."""
    shape = rng.choice((1, 7, 32, 100)), rng.choice((1, 5, 64, 200))
    devices = rng.sample(("cpu", "cuda"), k=2)
    source = laid_out(rng, shape, rng.choice(DTYPES), devices[0])
    if rng.random() < 0.2:
        source = laid_out(rng, (1, shape[1]), rng.choice(DTYPES), devices[0])
        source += f".expand({shape[0]}, {shape[1]})" if rng.random() < 0.5 else ""
    wait = ", non_blocking=True" if rng.random() < 0.4 else ""
    if rng.random() < 0.5:
        dtype = f", torch.{rng.choice(DTYPES)}" if rng.random() < 0.6 else ""
        return f"x = {source}\ny = x.to('{devices[1]}'{dtype}{wait})"
    return f"x = {source}\ny = {laid_out(rng, shape, rng.choice(DTYPES), devices[1])}\ny.copy_(x{wait})"


def draw(rng: random.Random) -> str:
    return rng.choice(FIXED.strip().split("\n\n")) if rng.random() < 0.4 else transfer(rng)
