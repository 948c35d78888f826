"""Four layers that FSDP shards, two steps: VERSION (fsdp2, fsdp1, fsdp1_with_its_parameters), DTYPE and the batch."""
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

version, dtype, batch = sys.argv[1], getattr(torch, sys.argv[2]), int(sys.argv[3])
class Layer(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
dist.init_process_group("nccl")
net = nn.Sequential(*(Layer() for _ in range(4))).cuda()
if version == "fsdp2":
    for layer in [*net, net]: fully_shard(layer, mp_policy=MixedPrecisionPolicy(dtype, torch.float32))
else:
    more = {} if dtype == torch.float32 else {"mixed_precision": MixedPrecision(dtype, torch.float32)}
    whole = version == "fsdp1_with_its_parameters"
    net = FullyShardedDataParallel(net, auto_wrap_policy=ModuleWrapPolicy({Layer}), use_orig_params=whole, **more)
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(2):
    net(torch.ones(batch, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
