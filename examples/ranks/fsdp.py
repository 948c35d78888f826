"""FSDP2: weights, gradients and states are sharded over the ranks, and each layer is gathered while it computes.

simgpu run -m torch.distributed.run --nproc-per-node 8 examples/ranks/fsdp.py prints each peak without a GPU.
With GPUs, run torchrun --nproc-per-node 8 examples/ranks/fsdp.py.
"""

import torch
import torch.distributed as dist
from model import layers, report, setup, train
from torch.distributed.fsdp import fully_shard

device = setup()
net = layers().to(device)
for layer in net:
    fully_shard(layer)
fully_shard(net)
torch.cuda.reset_peak_memory_stats()  # the whole model was on the GPU until here
x = torch.zeros(1, 1024, 1024, device=device)  # this rank's sequence
train(net, x)
report("FSDP")
dist.destroy_process_group()
