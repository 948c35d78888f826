import os, functools, sys
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.fsdp import (FullyShardedDataParallel as FSDP, MixedPrecision, CPUOffload, BackwardPrefetch, ShardingStrategy,
    StateDictType, FullStateDictConfig, FullOptimStateDictConfig, ShardedStateDictConfig, LocalStateDictConfig)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy, enable_wrap, wrap
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

mode = sys.argv[1] if len(sys.argv) > 1 else "size"
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb = nn.Embedding(200, 64)
        s.layers = nn.ModuleList([nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0) for _ in range(2)])
        s.fc = nn.Linear(64, 200)
    def forward(s, x):
        x = s.emb(x)
        for l in s.layers: x = l(x)
        return s.fc(x)
kw = {}
if mode == "size":
    kw = dict(auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=10000))
elif mode == "mixed":
    kw = dict(auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer}),
              mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16),
              backward_prefetch=BackwardPrefetch.BACKWARD_PRE, limit_all_gathers=True, use_orig_params=True)
elif mode == "offload":
    kw = dict(auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=10000), cpu_offload=CPUOffload(offload_params=True))
elif mode == "gradop":
    kw = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, sync_module_states=True)
elif mode == "scaler":
    kw = dict(mixed_precision=MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16))
model = Net()
if mode != "offload": model = model.to(local)
model = FSDP(model, device_id=torch.cuda.current_device(), **kw)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = ShardedGradScaler(enabled=mode == "scaler")
ddp_loss = torch.zeros(2).to(local)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
for step in range(3):
    x = torch.randint(0, 200, (4, 16)).to(local); y = torch.randint(0, 200, (4, 16)).to(local)
    opt.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out.float().view(-1, 200), y.view(-1))
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    model.clip_grad_norm_(1.0)
    scaler.step(opt); scaler.update()
    ddp_loss[0] += loss.item(); ddp_loss[1] += len(x)
end.record()
dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)
if dist.get_rank() == 0: print("Train loss", ddp_loss[0] / ddp_loss[1])
with FSDP.summon_full_params(model, writeback=False):
    n = sum(p.numel() for p in model.parameters())
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True), FullOptimStateDictConfig(rank0_only=True)):
    sd = model.state_dict(); osd = FSDP.optim_state_dict(model, opt)
if dist.get_rank() == 0: torch.save(sd, "m.pt"); print(n, len(sd))
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    sd = model.state_dict(); model.load_state_dict(sd)
if mode == "local":
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT): sd = model.state_dict()
dist.barrier()
print(start.elapsed_time(end) >= 0)
dist.destroy_process_group()
