"""Blocks and segments: the size that PyTorch allocates for a request, and its source."""

import torch

MiB = 2**20
# Around every size at which the allocator's behaviour changes: 512 B, 1 MiB, 10 MiB, multiples of 2 MiB.
SIZES = (1, 511, 512, 513, 4096, MiB - 512, MiB, MiB + 1, 2 * MiB, 5 * MiB, 10 * MiB - 1, 10 * MiB, 10 * MiB + 1)
SIZES += (11 * MiB, 12 * MiB + 1, 20 * MiB, 21 * MiB, 64 * MiB, 257 * MiB + 3)


def pages(stage):
    """Allocates each size alone from an empty cache, then all at once, and frees them in parts."""
    for size in SIZES:
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        stage(f"{size} B")
        del x
        torch.cuda.empty_cache()
    held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in SIZES]
    stage("all")
    del held[::2]
    stage("every second one freed")
    more = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in reversed(SIZES)]
    stage("all again, from the largest")
    del held, more
    stage("all freed")
    torch.cuda.empty_cache()
    stage("emptied")


WORKLOADS = {"pages": pages}
