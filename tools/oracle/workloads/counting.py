"""What scripts do beside their networks: random numbers of a generator of their own, and counts of what came out."""

import torch
from torch import nn


def generators(stage):
    """Factories that draw from a generator which the program names."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    made = [draw(333, 5, generator=generator, device="cuda") for draw in (torch.rand, torch.randn)]
    made.append(torch.rand(4, 1, generator=generator, device="cuda", dtype=torch.bfloat16))
    stage("floats")
    made += [torch.randint(7, (1000, 3), generator=generator, device="cuda")]
    made += [torch.randint(3, 9, (77,), generator=generator, device="cuda", dtype=torch.int32)]
    stage("whole numbers")
    for count in (1, 10, 1000, 30_000, 100_000):
        made.append(torch.randperm(count, generator=generator, device="cuda"))
        stage(f"{count} in another order")


def counts(stage):
    """bincount, with and without weights: the least and the largest value are read by the host."""
    for size in (0, 1, 100, 70_000):
        for dtype in (torch.int64, torch.int32, torch.uint8):
            labels = torch.zeros(size, dtype=dtype, device="cuda")
            found = [torch.bincount(labels, minlength=10)]
            stage(f"{size} of {dtype}")
            for weight in (torch.float32, torch.float64, torch.float16, torch.int64):
                found.append(torch.bincount(labels, torch.ones(size, dtype=weight, device="cuda"), minlength=3))
                stage(f"{size} of {dtype}, weights of {weight}")
    table = torch.zeros(4000, 2, dtype=torch.int64, device="cuda")
    found = torch.bincount(table[:, 0], minlength=2)
    stage("every second")
    del found


def drawn_like(stage):
    """Random numbers in the form of a tensor that is there, and into it: those that PyTorch's own samples leave out."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        whole = torch.zeros(70, 333, device="cuda", dtype=dtype)
        for x in (whole, whole.t(), whole[::2, ::3], whole[:, :1].expand(70, 5), whole[:0]):
            made = [draw(x) for draw in (torch.rand_like, torch.randn_like)]
            made += [torch.rand_like(x, dtype=torch.float32), torch.randint_like(x, 9), torch.randint_like(x, 3, 9)]
            made += [torch.rand_like(x, memory_format=torch.contiguous_format)]
            if x.stride(-1) or not x.numel():
                x.random_()
                x.random_(100, generator=generator)
                x.random_(3, 9)
            stage(f"{dtype} {tuple(x.shape)}")
            del made
    for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool):
        x = torch.empty(1000, 3, device="cuda", dtype=dtype)
        for one in (x, x.t(), x[::2]):
            one.random_()
            one.random_(2)
            one.random_(0, 2)
        stage(f"{dtype}")


def clipped_in_place(stage):
    """Activations that nn.functional has in place and torch.Tensor has not, forward and backward."""
    kinds = [nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.SELU, nn.RReLU]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.zeros(64, 300, device="cuda", dtype=dtype, requires_grad=True)
        for kind in kinds:
            for training in (True, False):
                activation = kind(inplace=True).train(training)
                y = activation(x * 2)
                stage(f"{kind.__name__} of {dtype}")
                y.sum().backward()
                activation((x * 2).t()).sum().backward()
                with torch.no_grad():
                    activation((x * 2)[:, ::2])
                stage(f"its gradient, {training}")
                del y


def grouped_products(stage):
    """torch._grouped_mm as experts call it: of batches, and of rows that belong together, whose ends stay on the GPU
    where it has a kernel; elsewhere the host reads them. The product before takes cuBLAS's workspace."""
    first = torch.zeros(8, 8, device="cuda")
    first = first @ first
    for tokens, experts, inside, outside in ((64, 4, 32, 48), (1000, 8, 64, 128)):
        weights = torch.zeros(experts, inside, outside, device="cuda", dtype=torch.bfloat16)
        rows = torch.zeros(tokens, inside, device="cuda", dtype=torch.bfloat16)
        batches = torch.zeros(experts, 16, inside, device="cuda", dtype=torch.bfloat16)
        ends = torch.zeros(experts, device="cuda", dtype=torch.int32)
        made = torch._grouped_mm(rows, weights, offs=ends)
        stage(f"{tokens} rows")
        made = torch._grouped_mm(batches, weights)
        stage(f"{experts} batches")
        made = torch._grouped_mm(batches.transpose(1, 2).contiguous().transpose(1, 2), weights.mT.contiguous().mT)
        stage("that lie the other way")
        del made


def float8_products(stage):
    """torch._scaled_mm of 8-bit floats with one scale per tensor, as a Linear calls it in forward and in backward.
    GPUs before compute capability 8.9 refuse it."""
    x8, weight8, scale = _float8_operands()
    gradient8 = torch.zeros(512, 256, device="cuda", dtype=torch.bfloat16).to(torch.float8_e5m2)
    stage("cast")
    for kind in (torch.bfloat16, torch.float32):
        made = torch._scaled_mm(x8, weight8.t(), scale, scale, out_dtype=kind)
        stage(f"{kind}")
        made = torch._scaled_mm(gradient8, weight8.t().contiguous().t(), scale, scale, out_dtype=kind)
        made = torch._scaled_mm(gradient8.t().contiguous(), x8.t().contiguous().t(), scale, scale, out_dtype=kind)
        stage("its gradients")
    del made


def float8_products_by_row(stage):
    """torch._scaled_mm of 8-bit floats with one scale per row and per column."""
    x8, weight8, _ = _float8_operands()
    rows, columns = torch.ones(512, 1, device="cuda"), torch.ones(1, 256, device="cuda")
    for fast in (False, True):
        made = torch._scaled_mm(x8, weight8.t(), rows, columns, out_dtype=torch.bfloat16, use_fast_accum=fast)
        stage(f"fast accumulation: {fast}")
    del made


def _float8_operands():
    """An input and a weight in 8-bit floats, and their scale."""
    x = torch.zeros(512, 1024, device="cuda", dtype=torch.bfloat16)
    weight = torch.zeros(256, 1024, device="cuda", dtype=torch.bfloat16)
    scale = x.abs().amax().float().clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max
    return *((tensor / scale).to(torch.float8_e4m3fn) for tensor in (x, weight)), scale


WORKLOADS = {
    "script_generators": generators,
    "script_counts": counts,
    "script_drawn_like": drawn_like,
    "script_clipped_in_place": clipped_in_place,
    "script_grouped_products": grouped_products,
    "script_float8_products": float8_products,
    "script_float8_products_by_row": float8_products_by_row,
}
