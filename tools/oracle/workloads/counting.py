"""What scripts do beside their networks: random numbers of a generator of their own, and counts of what came out."""

import torch


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


WORKLOADS = {"script_generators": generators, "script_counts": counts}
