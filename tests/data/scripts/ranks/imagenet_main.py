import argparse, os, random, shutil, time, warnings
from enum import Enum
import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn
import torch.nn.parallel
import torch.optim
import torch.utils.data
from torch.optim.lr_scheduler import StepLR

cudnn.enabled = False
best_acc1 = 0

class Fake(torch.utils.data.Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(3, 16, 16, generator=g), i % 10

class Summary(Enum):
    NONE = 0
    AVERAGE = 1

class AverageMeter:
    def __init__(self, name, fmt=":f", summary_type=Summary.AVERAGE):
        self.name, self.fmt, self.summary_type = name, fmt, summary_type
        self.reset()
    def reset(self):
        self.val = self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count
    def all_reduce(self):
        device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        total = torch.tensor([self.sum, self.count], dtype=torch.float32, device=device)
        dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
        self.sum, self.count = total.tolist()
        self.avg = self.sum / self.count
    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)

def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / batch_size) for k in topk]

def net():
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(32, 10))

def main_worker(gpu, args):
    global best_acc1
    dist.init_process_group(backend="nccl", init_method="env://", world_size=args.world_size, rank=args.rank)
    torch.cuda.set_device(gpu)
    model = net().cuda(gpu)
    args.batch_size = int(args.batch_size / torch.cuda.device_count())
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
    device = torch.device(f"cuda:{gpu}")
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    train, val = Fake(128), Fake(72)
    train_sampler = torch.utils.data.distributed.DistributedSampler(train)
    val_sampler = torch.utils.data.distributed.DistributedSampler(val, shuffle=False, drop_last=True)
    train_loader = torch.utils.data.DataLoader(train, batch_size=args.batch_size, shuffle=False, num_workers=0, pin_memory=True, sampler=train_sampler)
    val_loader = torch.utils.data.DataLoader(val, batch_size=args.batch_size, shuffle=False, pin_memory=True, sampler=val_sampler)
    for epoch in range(1):
        train_sampler.set_epoch(epoch)
        losses, top1 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
        model.train()
        for i, (images, target) in enumerate(train_loader):
            images = images.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            losses.update(loss.item(), images.size(0))
            top1.update(acc1[0], images.size(0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 2 == 0: print(losses, top1)
        model.eval()
        with torch.no_grad():
            for images, target in val_loader:
                images, target = images.cuda(gpu, non_blocking=True), target.cuda(gpu, non_blocking=True)
                output = model(images)
                loss = criterion(output, target)
                acc1, acc5 = accuracy(output, target, topk=(1, 5))
                losses.update(loss.item(), images.size(0)); top1.update(acc1[0], images.size(0))
        top1.all_reduce(); losses.all_reduce()
        if len(val_loader.sampler) * args.world_size < len(val_loader.dataset):
            aux = torch.utils.data.Subset(val, range(len(val_loader.sampler) * args.world_size, len(val)))
            print("aux", len(aux))
        acc1 = top1.avg
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        if args.rank % torch.cuda.device_count() == 0:
            torch.save({"epoch": epoch + 1, "state_dict": model.state_dict(), "best_acc1": best_acc1, "optimizer": optimizer.state_dict()}, "checkpoint.pth.tar")
            if is_best: shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")

if __name__ == "__main__":
    args = argparse.Namespace(batch_size=64, world_size=int(os.environ["WORLD_SIZE"]), rank=int(os.environ["RANK"]))
    main_worker(int(os.environ["LOCAL_RANK"]), args)
