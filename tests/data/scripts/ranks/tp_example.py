import os, torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.tensor.parallel import parallelize_module, ColwiseParallel, RowwiseParallel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor, DTensor, Shard, Replicate
class ToyModel(nn.Module):
    def __init__(s): super().__init__(); s.in_proj, s.relu, s.out_proj = nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)
    def forward(s, x): return s.out_proj(s.relu(s.in_proj(x)))
ws = int(os.environ["WORLD_SIZE"])
dm = init_device_mesh(device_type="cuda", mesh_shape=(ws,))
rank = dm.get_rank()
print(f"Starting PyTorch TP example on rank {rank}.")
m = parallelize_module(ToyModel().to("cuda"), dm, {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()})
opt = torch.optim.AdamW(m.parameters(), lr=0.25, foreach=True)
for i in range(4):
    torch.manual_seed(i)
    out = m(torch.rand(20, 10, device="cuda")); out.sum().backward(); opt.step()
big = torch.randn(16, 8)
d = distribute_tensor(big, dm, [Shard(0)])
r = d.redistribute(dm, [Replicate()])
print(d.to_local().shape, r.shape, (d @ d.T).full_tensor().shape)
print("Tensor Parallel training completed!")
