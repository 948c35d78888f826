"""Tensor parallelism: heads and columns of each layer are divided, and all ranks have the same sequences.

simgpu run -m torch.distributed.run --nproc-per-node 8 examples/ranks/tensor.py prints each peak without a GPU.
With GPUs, run torchrun --nproc-per-node 8 examples/ranks/tensor.py.
"""

import torch
import torch.distributed as dist
from model import layers, report, setup, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

device = setup()
net = layers()
plan = {f"*.{name}": ColwiseParallel() for name in ("q", "k", "v", "up")}
plan |= {f"*.{name}": RowwiseParallel() for name in ("o", "down")}
net = parallelize_module(net.to(device), init_device_mesh("cuda", (dist.get_world_size(),)), plan)
torch.cuda.reset_peak_memory_stats()  # the whole model was on the GPU until here
x = torch.zeros(1, 1024, 1024, device=device)
train(net, x, foreach=False)  # lists of whole and sharded tensors are refused
report("tensor")
dist.destroy_process_group()
