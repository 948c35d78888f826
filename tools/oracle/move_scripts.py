"""Scripts that move things between host and device as people write them, one in each paragraph: for `rules/moves`."""

SCRIPTS = """
m = nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.LazyLinear(4)).to('cuda')
y = m(torch.randn(8, 16, device='cuda'))
y.sum().backward()
tell(m, y)

m = nn.LazyConv2d(8, 3).cuda()
with torch.backends.cudnn.flags(enabled=False):
    y = m(torch.randn(2, 3, 8, 8, device='cuda'))
tell(m, y)

m = nn.LazyBatchNorm1d()
m.to(device='cuda')
m(torch.randn(8, 16, device='cuda'))
tell(m)

m = nn.LazyLinear(32, device='cuda')
tell(m)
m(torch.randn(8, 16, device='cuda'))
tell(m)

m = nn.LazyLinear(32)
m(torch.randn(8, 16))
m.cuda().half()
tell(m)

p = nn.UninitializedParameter(device='cuda')
tell(p)
p.materialize((3, 4))
tell(p)

p = nn.UninitializedBuffer()
p = p.cuda()
tell(p)
p.materialize((3, 4))
tell(p)

m = nn.LazyLinear(3).to('cuda', torch.float16)
m.load_state_dict(nn.Linear(5, 3).state_dict())
tell(m)

m = nn.LazyLinear(3).cuda().cpu()
tell(m)

x = torch.cuda.FloatTensor(4)
tell(x)

x = torch.cuda.FloatTensor([1., 2., 3.])
tell(x)

x = torch.cuda.FloatTensor(3, 4).fill_(0)
tell(x, isinstance(x, torch.cuda.FloatTensor), isinstance(x, torch.FloatTensor), isinstance(x, torch.Tensor))

x = torch.cuda.LongTensor([[1, 2], [3, 4]])
tell(x, isinstance(x, torch.cuda.LongTensor), isinstance(x, torch.cuda.FloatTensor))

x = torch.cuda.HalfTensor(5)
y = torch.cuda.ByteTensor(5)
z = torch.cuda.BoolTensor(3)
w = torch.cuda.IntTensor()
tell(x, y, z, w)

x = torch.cuda.FloatTensor()
tell(x)
x.resize_(3, 4).copy_(torch.ones(3, 4))
tell(x)

x = torch.cuda.FloatTensor(torch.Size([2, 3]))
tell(x)

import numpy
x = torch.cuda.FloatTensor(numpy.ones(3, dtype=numpy.float32))
tell(x)

x = torch.cuda.FloatTensor(torch.ones(3, device='cuda'))
tell(x)

x = torch.FloatTensor(3).cuda()
tell(x, isinstance(x, torch.cuda.FloatTensor), type(x), x.type())

x = torch.Tensor(3, 4).cuda()
y = torch.Tensor([1, 2]).to('cuda')
z = torch.LongTensor([1, 2]).cuda()
tell(x, y, z)

dtype = torch.cuda.FloatTensor
x = torch.rand(2, 3, 4).type(dtype)
y = torch.zeros(3).type(torch.cuda.LongTensor)
tell(x, y, dtype.dtype, dtype.is_cuda)

torch.set_default_tensor_type('torch.cuda.HalfTensor')
try:
    x = torch.ones(3)
    tell(x)
finally:
    torch.set_default_tensor_type('torch.FloatTensor')

x = torch.ones(3, device='cuda').share_memory_()
tell(x, x.is_shared())

m = nn.Linear(3, 4).cuda().share_memory()
tell(m)

m = nn.Linear(3, 4).share_memory()
tell(m, m.weight.is_shared())
m.cuda()
tell(m)

g = torch.Generator(device='cuda')
g.manual_seed(3)
x = torch.randn(3, device='cuda', generator=g)
tell(x, g.device)

g = torch.Generator('cuda')
x = torch.randn(3, 4, generator=g, device='cuda')
nn.init.normal_(x, generator=g)
y = torch.randperm(10, generator=g, device='cuda')
tell(x, y, g.device)

x = torch.ones(3, device='cuda')
y = x.new(3)
z = x.new(2, 3)
w = x.new([1, 2])
v = x.new()
u = x.new(torch.Size([2]))
tell(y, z, w, v, u)

x = torch.ones(3, device='cuda')
y = x.new(x)
z = x.new(x.untyped_storage())
tell(y)

x = torch.empty(3, 4, device=torch.cuda.current_device())
y = torch.empty(3, 4, device=torch.device('cuda', torch.cuda.current_device()))
z = torch.zeros(2, device=f'cuda:{torch.cuda.current_device()}')
tell(x, y, z)

import copy
m = nn.Linear(30, 40).cuda()
n = copy.deepcopy(m)
tell(n)

import copy
x = torch.ones(30, 40, device='cuda')
y = copy.deepcopy(x[2:5])
z = copy.deepcopy([x, x[1:], x.t()])
tell(y, z)

import copy
m = nn.Linear(30, 40, device='cuda')
m(torch.ones(30, device='cuda')).sum().backward()
n = copy.deepcopy(m)
tell(n)

import copy
m = nn.Linear(30, 40, device='cuda')
both = nn.ModuleList([m, m])
n = copy.deepcopy(both)
tell(n, n[0].weight is n[1].weight)

import copy
x = nn.Parameter(torch.ones(30, device='cuda'))
y = copy.copy(x)
z = x.data.clone()
tell(y, z)

a = torch.ones(3, device='cuda')
b = torch.zeros(4, 5)
torch.utils.swap_tensors(a, b)
tell(a, b)

p = nn.Parameter(torch.ones(3).cuda())
q = nn.Parameter(torch.ones(3)).cuda()
tell(p, q)

m = nn.Module()
m.register_buffer('b', torch.ones(5).cuda())
m.register_parameter('p', nn.Parameter(torch.ones(5, device='cuda')))
m.c = nn.Buffer(torch.ones(7, device='cuda'))
m.d = nn.Parameter(torch.ones(7))
m.to(0)
tell(m)

x = torch.ones(3, 4, device='cuda')
x.data = torch.zeros(5, device='cuda')
tell(x)

x = torch.ones(300)
x.data = x.data.cuda()
tell(x)
x.data = x.data.cpu()
tell(x)

p = nn.Parameter(torch.ones(300))
p.grad = torch.ones(300)
p.data = p.data.cuda()
p.grad.data = p.grad.data.cuda()
tell(p)

p = nn.Parameter(torch.ones(300, device='cuda'))
p.grad = torch.ones(300, device='cuda')
p.grad = None
p.grad = torch.zeros_like(p)
tell(p)

p = nn.Parameter(torch.ones(300, device='cuda'))
p.grad = torch.ones(300)

p = nn.Parameter(torch.ones(300, device='cuda'))
p.grad = torch.ones(300, device='cuda').half()

x = torch.ones(30, device='cuda')
y = torch.empty(0, device='cuda').set_(x)
z = torch.empty(0, device='cuda').set_(x.untyped_storage())
w = torch.empty(0, device='cuda').set_(x.untyped_storage(), 3, (2, 3))
tell(y, z, w)

x = torch.ones(30, device='cuda')
y = torch.empty(0).cuda().set_(torch.ones(7, device='cuda').untyped_storage(), 0, (7,))
tell(y)

from torch.utils.data import DataLoader, TensorDataset
for (batch,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4, pin_memory=True):
    y = batch.to('cuda', non_blocking=True)
    tell(y)

from torch.utils.data import DataLoader, TensorDataset
for (batch,) in DataLoader(TensorDataset(torch.ones(8, 4, device='cuda')), batch_size=4):
    tell(batch)

x = torch.ones(3, device='cuda')
y = x.to(torch.device('meta'))
tell(y)
z = torch.empty_like(y, device='cuda')
tell(z)

with torch.device('meta'):
    m = nn.Linear(30, 40)
tell(m)
m.to_empty(device='cuda')
tell(m)

with torch.device('meta'):
    m = nn.Linear(30, 40)
m.to('cuda')

with torch.device('meta'):
    m = nn.Linear(30, 40)
m.cuda()

with torch.device('meta'):
    m = nn.Linear(30, 40)
m.to(device='cuda')

with torch.device('meta'):
    m = nn.Linear(30, 40)
m.load_state_dict({k: v.cuda() for k, v in nn.Linear(30, 40).state_dict().items()}, assign=True)
tell(m)

m = nn.Linear(30, 40)
m.load_state_dict(nn.Linear(30, 40).cuda().state_dict(), assign=True)
tell(m)

m = nn.Linear(30, 40, device='cuda')
m.load_state_dict(nn.Linear(30, 40).state_dict(), strict=True)
tell(m)

m = nn.Linear(30, 40).cuda()
o = torch.optim.Adam(m.parameters())
m(torch.ones(2, 30).cuda()).sum().backward()
o.step()
s = o.state_dict()
p = torch.optim.Adam(m.parameters())
p.load_state_dict(s)
tell([v for d in p.state.values() for v in d.values()])

x = torch.ones(3, 4, device='cuda')
y = torch.ones(4, 3)
z = x @ y

x = torch.ones(3, 4, device='cuda')
m = nn.Linear(4, 5)
m(x)

x = torch.ones(3, 4).to('cuda', non_blocking=True)
y = x.to('cpu', non_blocking=True)
z = x.to('cuda')
tell(y, z is x)

device = 'cuda' if torch.cuda.is_available() else 'cpu'
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
opt = torch.optim.SGD(model.parameters(), lr=.1)
for x, y in [(torch.randn(5, 10), torch.randint(2, (5,)))] * 2:
    x, y = x.to(device), y.to(device)
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
tell(model)

y = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 4, device='cuda'), torch.ones(2, 4, device='cuda')])
tell(y)
z = torch.nn.utils.rnn.pad_packed_sequence(y)
tell(z)
tell(y.to('cpu'), y.cuda() is y, y.to(device='cuda') is y)

x = torch.ones(4, 5, device='cuda').storage()
tell(x.device, x.is_cuda, len(x), x.nbytes())
y = x.cpu()
tell(y.device)

x = torch.ones(4, 5).storage().cuda()
tell(x.device, x.is_cuda, x.dtype)

with torch.cuda.device(0):
    x = torch.ones(3).cuda()
    tell(x)
with torch.cuda.device('cuda:0'):
    tell(torch.empty(4, device='cuda'))
with torch.cuda.device_of(x):
    tell(torch.empty(4, device='cuda'))

torch.cuda.set_device(0)
torch.cuda.set_device('cuda:0')
torch.cuda.set_device(torch.device('cuda'))
x = torch.ones(3, device='cuda')
tell(x, x.get_device(), torch.get_device(x))

x = torch.ones(3).to(torch.ones(2, device='cuda'))
y = torch.ones(3).to(other=x)

x = torch.ones(3, 4, device='cuda', requires_grad=True)
y = x.cuda()
z = x.cpu().cuda()
z.sum().backward()
tell(x, y is x)

x = torch.from_numpy(__import__('numpy').ones((3, 4), dtype='float32')).to('cuda')
y = torch.frombuffer(bytearray(b'abcdefgh'), dtype=torch.uint8).cuda()
tell(x, y)

x = torch.ones(3, 4).cuda()
for kind in (torch.ByteTensor, torch.IntTensor):
    tell(x.to(torch.float64).type(kind))

import io
f = io.BytesIO()
torch.save({'model': nn.Linear(30, 40).state_dict(), 'epoch': 3}, f)
f.seek(0)
m = nn.Linear(30, 40).to('cuda')
c = torch.load(f, map_location='cuda')
m.load_state_dict(c['model'])
tell(m, c)

import io
f = io.BytesIO()
torch.save(nn.Linear(30, 40), f)
f.seek(0)
m = torch.load(f, map_location=torch.device('cuda'), weights_only=False)
tell(m)

import io
f = io.BytesIO()
x = torch.ones(30, 40)
torch.save([x, x[3:5], x.t()], f)
f.seek(0)
y = torch.load(f, map_location='cuda:0')
tell(y)

import tempfile, os
with tempfile.TemporaryDirectory() as d:
    torch.save(nn.Linear(30, 40).state_dict(), d + '/a.pt')
    y = torch.load(d + '/a.pt', map_location='cuda', mmap=True)
    tell(y)

import io
f = io.BytesIO()
torch.save(torch.ones(300), f, _use_new_zipfile_serialization=False)
f.seek(0)
tell(torch.load(f, map_location='cuda'))

torch.set_default_device('cuda')
try:
    m = nn.Linear(30, 40)
    x = torch.randn(5, 30)
    i = torch.arange(5)
    y = m(x)
    tell(m, x, y, torch.get_default_device(), torch.tensor([1]), torch.Tensor(3))
finally:
    torch.set_default_device(None)

with torch.device('cuda'):
    m = nn.TransformerEncoderLayer(16, 2, 32)
    tell(m, torch.get_default_device())
    with torch.device('cpu'):
        tell(torch.ones(3))
    tell(torch.ones(3))

@torch.device('cuda')
def build():
    return nn.Embedding(30, 40)
tell(build())

m = nn.Linear(30, 40)
m.apply(lambda module: module.cuda())
tell(m)
m._apply(lambda t: t.cpu())
tell(m)

m = nn.Linear(30, 40)
for p in m.parameters():
    p.data = p.data.to('cuda')
tell(m)

m = nn.Linear(30, 40)
m.weight = nn.Parameter(m.weight.to('cuda'))
m.bias = nn.Parameter(m.bias.cuda())
tell(m)

m = nn.Linear(30, 40)
y = m(torch.ones(2, 30))
m.cuda()
tell(m)
z = m(torch.ones(2, 30, device='cuda'))
z.sum().backward()
tell(m)

m = nn.Linear(30, 40)
loss = m(torch.ones(2, 30)).sum()
loss.backward()
m.cuda()
tell(m)
z = m(torch.ones(2, 30, device='cuda')).sum()
z.backward()
tell(m)

import weakref
m = nn.Linear(30, 40)
r = weakref.ref(m.weight)
m.cuda()
tell(m, r() is m.weight)

m = nn.DataParallel(nn.Linear(30, 40)).cuda()
tell(m, m(torch.ones(2, 30)))

m = nn.DataParallel(nn.Linear(30, 40), device_ids=[0]).to('cuda')
tell(m, m(torch.ones(2, 30).cuda()))

m = torch.nn.utils.parametrizations.weight_norm(nn.Linear(30, 40)).cuda()
tell(m, m.weight)

m = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(30, 40)).to(device='cuda')
tell(m)

m = torch.nn.utils.weight_norm(nn.Linear(30, 40)).cuda()
tell(m)
tell(m(torch.ones(2, 30, device='cuda')))

x = torch.ones(3, device='cuda').numpy()

x = torch.ones(3, device='cuda')
y = x.cpu().detach()
z = x.to('cpu').clone()
tell(y, z)

x = torch.randn(3, 4, dtype=torch.float64).cuda().float()
y = torch.arange(10).cuda(0)
z = torch.linspace(0, 1, 5).cuda(device=0, non_blocking=True)
tell(x, y, z)

x = torch.empty((2, 3), device='cuda', memory_format=torch.contiguous_format)
y = torch.empty((2, 3, 4, 5), device='cuda', memory_format=torch.channels_last)
z = y.cpu()
w = z.contiguous()
tell(x, y, z, w)

torch.cuda.comm.broadcast(torch.ones(3, device='cuda'), devices=[0])

tell(torch.cuda.comm.scatter(torch.ones(4, 3, device='cuda'), [0]))

x = torch.ones(3, device='cuda')
y = torch.as_tensor(x)
z = torch.as_tensor(x, device='cuda')
w = torch.as_tensor(x, device='cpu')
v = torch.asarray(x, device='cuda', copy=True)
tell(y is x, z is x, w, v)

x = torch.ones(3, 4, device='cuda')
y = torch.tensor(x.shape)
z = torch.tensor([1, 2]).to(x)
w = torch.tensor([1, 2]).to(x.device, x.dtype)
v = torch.zeros(x.shape).to(x.device)
tell(y, z, w, v)

x = torch.ones(3, 4, device='cuda')
y = x.new_tensor([[1, 2]])
z = x.new_zeros((2,), device='cpu')
w = x.new_empty(2, dtype=torch.half)
tell(y, z, w)

x = torch.randn(3, 4, device=torch.device('cuda:0'), dtype=torch.half, requires_grad=True)
y = torch.nn.init.xavier_uniform_(torch.empty(3, 4, device='cuda'))
z = torch.nn.init.orthogonal_
tell(x, y)

m = nn.MultiheadAttention(16, 2, device='cuda', dtype=torch.half)
tell(m)

m = nn.Linear(3, 4).to('cuda', 'cpu')

m = nn.Linear(3, 4).to(torch.int32)

m = nn.Linear(3, 4).to('cuda', torch.int64)

m = nn.Linear(3, 4).to('gpu')

m = nn.Linear(3, 4).cuda('cpu')

torch.ones(3).cuda('cpu')

torch.ones(3).to('cuda', 3)

torch.ones(3).to(device='cuda', devices=1)

torch.ones(3).cuda(-1)

torch.ones(3).to(-1)

torch.ones(3, device=-1)

torch.ones(3).to('cuda:x')

torch.ones(3, device='cuda:-1')

m = nn.Linear(3, 4).cuda(device='cuda')
tell(m)

x = torch.ones(3, device='cuda').to('xpu')

x = torch.ones(3).to('mps')

x = torch.ones(30, 40, device='cuda').cpu()
y = torch.empty_like(x, device='cuda')
z = torch.zeros_like(x)
w = x.new_ones(4, device='cuda')
v = torch.zeros(x.shape, device='cuda')
tell(y, z, w, v)

x = torch.ones(30, 40, device='cuda')
y = torch.empty_like(x, device='meta')
z = x.new_zeros(3, device='meta')
w = torch.zeros_like(x, device='cpu')
v = torch.randn_like(y, device='cuda')
tell(y, z, w, v)
"""
