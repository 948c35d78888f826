"""The two printed peaks of EfficientPyTorch, chapter 7: SGD with and without accumulation of gradients.

The public repository ailzhang/EfficientPyTorch, chapter_07_memory/{10_cross_batch,11_no_accumulation}.py, records what
a GPU printed. The GPU and the torch version are not said; the workspaces say a compute capability below 9.0.
"""

import pytest
import torch

import labkit

KiB, MiB = 2**10, 2**20
WORKSPACE = 8_519_680  # cuBLAS's, one for forward and one for backward


def train(samples_at_once: int, accumulate: int) -> int:
    """Two steps of SGD on 2 × 256 samples of 32×1024 and a weight of 1024×32; the peak, in bytes."""
    samples = torch.randn(512, 32, 1024)
    weight = torch.randn(1024, 32, requires_grad=True, device="cuda")
    optimizer = torch.optim.SGD([weight], lr=0.01)
    batches = iter(samples.split(samples_at_once))
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(accumulate):
            batch = next(batches).to("cuda")
            y = batch.matmul(weight)
            loss = y.sum()
            loss.backward()
        optimizer.step()
    return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize(
    ("samples_at_once", "accumulate", "printed"), [(128, 2, "49.00048828125"), (256, 1, "81.37548828125")]
)
def test_the_peak_is_the_printed_one(samples_at_once, accumulate, printed, exactness):
    with labkit.simulated_gpu("A100-80GB"):
        peak = train(samples_at_once, accumulate)
    # While a batch comes in, the one before it, its output and its loss are still there: the names hold them.
    batch, output, loss = samples_at_once * 32 * 1024 * 4, samples_at_once * 32 * 32 * 4, 512
    weight = 128 * KiB
    gradient = weight if accumulate > 1 else 0  # zero_grad() has just let go of it where each batch is a step
    assert peak == 2 * batch + output + loss + weight + gradient + 2 * WORKSPACE
    exactness(
        3,
        "published toy scripts",
        "peaks that a real GPU printed (EfficientPyTorch, chapter 7)",
        "peaks",
        f"{accumulate} backward a step",
        1,
        int(peak == float(printed) * MiB),
        "" if peak == float(printed) * MiB else f"{peak / MiB} MiB, printed {printed}",
    )
    assert peak == float(printed) * MiB
