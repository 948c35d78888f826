"""Data parallelism: each rank has the whole model and other sequences, and DDP averages the gradients.

simgpu run -m torch.distributed.run --nproc-per-node 8 examples/ranks/data.py prints each peak without a GPU.
With GPUs, run torchrun --nproc-per-node 8 examples/ranks/data.py.
"""

import torch
import torch.distributed as dist
from model import layers, report, setup, train
from torch.nn.parallel import DistributedDataParallel

device = setup()
net = DistributedDataParallel(layers().to(device))
x = torch.zeros(1, 1024, 1024, device=device)  # this rank's sequence
train(net, x)
report("data")
dist.destroy_process_group()
