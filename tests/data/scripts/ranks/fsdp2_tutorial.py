"""In the way of PyTorch's FSDP2 tutorial: a transformer, prefetching, checkpoints of both APIs."""
import os, sys
import torch, torch.nn as nn, torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict)
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor, Shard

class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__(); self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.w1, self.w2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        return x + self.w2(F.gelu(self.w1(self.n2(x))))
class Net(nn.Module):
    def __init__(self, vocab=1024, dim=256, layers=6, length=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.layers = nn.ModuleList(Block(dim, 4) for _ in range(layers))
        self.norm, self.output = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        self.output.weight = self.tok.weight
    def forward(self, t):
        x = self.tok(t) + self.pos(torch.arange(t.shape[1], device=t.device))
        for l in self.layers: x = l(x)
        return self.output(self.norm(x)).float()
    def reset_parameters(self): 
        for m in self.modules():
            if m is not self and hasattr(m, "reset_parameters"): m.reset_parameters()

rank = int(os.environ["LOCAL_RANK"])
device = torch.device(f"cuda:{rank}"); torch.cuda.set_device(device)
torch.distributed.init_process_group(backend="nccl", device_id=device)
torch.manual_seed(0)
with torch.device("meta"): model = Net()
kw = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if "mp" in sys.argv else {}
for l in model.layers: fully_shard(l, **kw)
fully_shard(model, **kw)
assert isinstance(model, FSDPModule)
if "prefetch" in sys.argv:
    for i, l in enumerate(model.layers):
        if i < len(model.layers) - 2: l.set_modules_to_forward_prefetch(list(model.layers[i + 1 : i + 3]))
        if i >= 2: l.set_modules_to_backward_prefetch([model.layers[i - j] for j in (1, 2)])
model.to_empty(device="cuda"); model.reset_parameters()
optim = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(3):
    if "prefetch" in sys.argv: model.unshard()
    x = torch.randint(0, 1024, (8, 64), device=device)
    loss = model(x).sum(); loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optim.step(); optim.zero_grad()
if "dcp" in sys.argv:
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    fo = get_optimizer_state_dict(model, optim, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if torch.distributed.get_rank() == 0: torch.save(full, "model_state_dict.pt"); torch.save(fo, "optim_state_dict.pt")
    torch.distributed.barrier()
    set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    set_optimizer_state_dict(model, optim, fo, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
if "dtensor" in sys.argv:
    sharded = model.state_dict(); full = {}
    for name, p in sharded.items():
        whole = p.full_tensor()
        if torch.distributed.get_rank() == 0: full[name] = whole.cpu()
        else: del whole
    if torch.distributed.get_rank() == 0: torch.save(full, "m.pt")
    new = {name: nn.Parameter(distribute_tensor(torch.empty(p.shape, device="cuda"), p.device_mesh, p.placements)) for name, p in sharded.items()}
    model.load_state_dict(new, strict=False, assign=True)
    osd = optim.state_dict()
torch.distributed.destroy_process_group()
