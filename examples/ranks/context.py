"""Context parallelism: each rank has a part of every sequence, and keys and values go around in a ring.

simgpu run -m torch.distributed.run --nproc-per-node 8 examples/ranks/context.py prints each peak without a GPU.
With GPUs, run torchrun --nproc-per-node 8 examples/ranks/context.py.
"""

import torch
import torch.distributed as dist
from model import layers, report, setup, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

device = setup()
set_rotate_method("alltoall")  # the ring; "allgather" collects all keys and values first
net = layers().to(device)
x = torch.zeros(1, 32_768, 1024, device=device)  # the whole sequence, of which this rank keeps its part
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
with (
    context_parallel(mesh, buffers=[x], buffer_seq_dims=[1], no_restore_buffers={x}),
    sdpa_kernel(SDPBackend.FLASH_ATTENTION),
):
    train(net, x)  # in a real run, gradients are also averaged over the ranks, for example by FSDP
report("context")
dist.destroy_process_group()
