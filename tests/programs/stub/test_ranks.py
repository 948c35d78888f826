"""One rank of several on the stub engine: how much memory it needs does not depend on which thread is quicker."""

import pytest

import simgpu
from simgpu.stub import engine

pytestmark = pytest.mark.skipif(
    bool(engine.supported()) or engine.unpacked(engine.DEFAULT_VERSION) is None,
    reason="the stub engine of torch 2.13.0 is not installed: simgpu engine install --torch 2.13.0",
)

FUTURES = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
for i in range(20):
    gradient = torch.ones(2**22, device="cuda")
    work = dist.all_reduce(gradient, async_op=True)
    work.get_future().wait()
    del gradient, work
dist.destroy_process_group()
"""


def test_tensors_of_collectives_that_ended_are_released(tmp_path):
    """NCCL's watchdog holds them until it looks, every 100 ms. On a GPU a step takes longer; here 20 steps do not.

    A gradient is allocated before the next kernel starts, so two are alive at once, and never more.
    """
    path = tmp_path / "script.py"
    path.write_text(FUTURES)
    settings = {"engine": "stub", "torch_version": engine.DEFAULT_VERSION, "gpu": "H100", "ranks": 8}
    report = simgpu.run(path, **settings)
    assert report.completed, report.ended
    assert report.peak == 2 * 4 * 2**22
    assert report.rank == (0, 8)


REUSED = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
kept = torch.tensor([7.5, 8.5], device="cuda")
for _ in range(8):
    gone = torch.tensor([1e9] * 128, device="cuda")
    del gone
    assert torch.empty(128, device="cuda").sum().item() == 0
    ones = torch.ones(100, device="cuda")
    assert len(ones.nonzero()) == len(ones[ones > 0]) == 0
assert kept.tolist() == [7.5, 8.5]
"""


def test_a_block_that_is_handed_out_again_does_not_hold_what_was_copied_to_it_before(tmp_path):
    """Small copies to the GPU are remembered on a rank. The number of nonzero elements was read from such a place."""
    path = tmp_path / "script.py"
    path.write_text(REUSED)
    report = simgpu.run(path, engine="stub", torch_version=engine.DEFAULT_VERSION, gpu="H100", ranks=2)
    assert report.completed, report.ended
