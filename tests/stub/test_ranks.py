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
