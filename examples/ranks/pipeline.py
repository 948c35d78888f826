"""Pipeline parallelism: each rank has some of the layers, and micro-batches pass through them (1F1B).

simgpu run -m torch.distributed.run --nproc-per-node 4 examples/ranks/pipeline.py prints each peak without a GPU.
With GPUs, run torchrun --nproc-per-node 4 examples/ranks/pipeline.py.
"""

import torch
import torch.distributed as dist
from model import DEPTH, layers, report, setup
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

SEQUENCES, MICRO_BATCHES = 8, 8

device = setup()
rank, ranks = dist.get_rank(), dist.get_world_size()
if DEPTH % ranks:
    raise SystemExit(f"{DEPTH} layers cannot be divided evenly among {ranks} ranks")
part = layers(depth=DEPTH // ranks).to(device)
shape = torch.empty(SEQUENCES // MICRO_BATCHES, 1024, 1024, dtype=torch.bfloat16, device="meta", requires_grad=True)
stage = PipelineStage(part, rank, ranks, device, input_args=shape, output_args=shape)
schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda y, _: y.float().square().mean())
optimizer = torch.optim.AdamW(part.parameters())
x = torch.zeros(SEQUENCES, 1024, 1024, dtype=torch.bfloat16, device=device)
for _ in range(2):
    schedule.step(*[x] * (rank == 0), **({"target": x} if rank == ranks - 1 else {}), return_outputs=False)
    optimizer.step()
    optimizer.zero_grad()
report("pipeline")
dist.destroy_process_group()
