import os, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, ws):
    os.environ["MASTER_ADDR"] = "localhost"; os.environ["MASTER_PORT"] = "12355"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ws)
    m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to(rank), device_ids=[rank])
    m(torch.randn(2, 4).to(rank)).sum().backward()
    dist.destroy_process_group()
if __name__ == "__main__":
    ws = torch.cuda.device_count(); print("gpus", ws)
    mp.spawn(work, args=(ws,), nprocs=ws, join=True)
