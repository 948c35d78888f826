"""PyTorch's MemTracker over FakeTensors on the CPU, which is what a CPU build of PyTorch permits."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers.initialization import no_init_weights

from benchmarks.league import training
from benchmarks.league.answer import within as fits
from benchmarks.league.workloads import Workload

__all__ = ["LIMITS", "NEEDS", "TITLE", "fits", "peak"]

TITLE = "MemTracker with FakeTensor (torch)"
NEEDS = "torch"
LIMITS = (
    "made for CUDA; a CPU build of PyTorch refuses fake tensors on `cuda`, so the CPU's operators are tracked, "
    "whose attention and recurrent kernels differ; nothing is rounded, and workspaces are not seen"
)
DEVICE = "cpu"


def peak(workload: Workload) -> int:
    """Its peak snapshot over two steps, module statistics reset after each, as its documentation says."""
    with training.settings(), FakeTensorMode():
        with no_init_weights():  # transformers' way of initialising asks fake tensors for values
            model = training.built(workload, DEVICE)
        optimizer, given = training.optimizer_of(workload, model), training.inputs(workload, DEVICE)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *given.values())
        with tracker:
            training.steps(workload, model, optimizer, given, DEVICE, after_backward=tracker.reset_mod_stats)
        return sum(found["Total"] for found in tracker.get_tracker_snapshot("peak").values())
