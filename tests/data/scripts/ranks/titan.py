# torchtitan-like: FSDP2 x TP on a (dp, tp) mesh, selective checkpointing, DCP
import os, sys, functools
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Shard, Replicate
from torch.distributed.tensor.parallel import (parallelize_module, ColwiseParallel, RowwiseParallel, SequenceParallel,
    PrepareModuleInput, loss_parallel)
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import create_selective_checkpoint_contexts, CheckpointPolicy
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict, StateDictOptions
from torch.distributed.checkpoint.stateful import Stateful

class RMSNorm(nn.Module):
    def __init__(s, d): super().__init__(); s.weight = nn.Parameter(torch.ones(d))
    def forward(s, x): return F.rms_norm(x, (x.shape[-1],), s.weight)
    def reset_parameters(s): nn.init.ones_(s.weight)
class Attention(nn.Module):
    def __init__(s, d, h):
        super().__init__(); s.hd = d // h
        s.wq, s.wk, s.wv, s.wo = (nn.Linear(d, d, bias=False) for _ in range(4))
    def forward(s, x):
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, s.hd).transpose(1, 2) for w in (s.wq, s.wk, s.wv))
        return s.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1))
class FeedForward(nn.Module):
    def __init__(s, d, f): super().__init__(); s.w1, s.w3, s.w2 = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)
    def forward(s, x): return s.w2(F.silu(s.w1(x)) * s.w3(x))
class Block(nn.Module):
    def __init__(s, d, h):
        super().__init__(); s.attention, s.feed_forward = Attention(d, h), FeedForward(d, 2 * d)
        s.attention_norm, s.ffn_norm = RMSNorm(d), RMSNorm(d)
    def forward(s, x):
        x = x + s.attention(s.attention_norm(x)); return x + s.feed_forward(s.ffn_norm(x))
class Transformer(nn.Module):
    def __init__(s, v=512, d=128, h=8, n=2):
        super().__init__(); s.tok_embeddings = nn.Embedding(v, d)
        s.layers = nn.ModuleDict({str(i): Block(d, h) for i in range(n)})
        s.norm, s.output = RMSNorm(d), nn.Linear(d, v, bias=False)
    def forward(s, x):
        x = s.tok_embeddings(x)
        for l in s.layers.values(): x = l(x)
        return s.output(s.norm(x))
    def init_weights(s):
        for m in s.modules():
            if hasattr(m, "reset_parameters"): m.reset_parameters()

world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
dp, tp = mesh["dp"], mesh["tp"]
torch.manual_seed(0)
with torch.device("meta"): model = Transformer()
parallelize_module(model, tp, {
    "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
for b in model.layers.values():
    parallelize_module(b, tp, {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "attention.wq": ColwiseParallel(), "attention.wk": ColwiseParallel(), "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed_forward.w1": ColwiseParallel(), "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)), "feed_forward.w3": ColwiseParallel()})
save = {torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ops.aten._scaled_dot_product_efficient_attention.default}
def policy(ctx, op, *a, **k): return CheckpointPolicy.MUST_SAVE if op in save else CheckpointPolicy.PREFER_RECOMPUTE
for i, b in model.layers.items():
    model.layers[i] = checkpoint_wrapper(b, context_fn=functools.partial(create_selective_checkpoint_contexts, policy), preserve_rng_state=False)
mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
RAF = eval(sys.argv[1]) if len(sys.argv) > 1 else True
for i, b in model.layers.items(): fully_shard(b, mesh=dp, mp_policy=mp, reshard_after_forward=RAF)
fully_shard(model, mesh=dp, mp_policy=mp, reshard_after_forward=RAF)
model.to_empty(device="cuda")
with torch.no_grad(): model.init_weights()
opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 2))
for step in range(3):
    x = torch.randint(0, 512, (2, 64), device="cuda"); y = torch.randint(0, 512, (2, 64), device="cuda")
    with loss_parallel():
        pred = model(x)
        loss = F.cross_entropy(pred.flatten(0, 1).float(), y.flatten(0, 1))
        del pred
        loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    if isinstance(norm, DTensor): norm = norm.full_tensor()
    opt.step(); sched.step(); opt.zero_grad()
    l = loss.full_tensor() if isinstance(loss, DTensor) else loss
    gl = l.detach().clone(); dist.all_reduce(gl, op=dist.ReduceOp.AVG, group=dp.get_group())
    if dist.get_rank() == 0: print(f"step {step} loss {gl.item():.4f} norm {norm.item():.4f}")
w = model.layers["0"]._checkpoint_wrapped_module.attention.wq.weight if hasattr(model.layers["0"], "_checkpoint_wrapped_module") else model.layers["0"].attention.wq.weight
print(w.shape, w.to_local().shape, w.full_tensor().shape, w.placements)
sd = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
print(len(sd))
if "--ckpt" in sys.argv:
    class App(Stateful):
        def state_dict(self):
            m, o = get_state_dict(model, opt); return {"model": m, "optim": o}
        def load_state_dict(self, s): set_state_dict(model, opt, model_state_dict=s["model"], optim_state_dict=s["optim"])
    dcp.save({"app": App()}, checkpoint_id="ck")
    dcp.load({"app": App()}, checkpoint_id="ck")
dist.barrier(device_ids=[int(os.environ["LOCAL_RANK"])])
dist.destroy_process_group()
