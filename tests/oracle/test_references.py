"""The stored traces have the figures that the course quotes for torch 2.13 (the oracle's, in MiB; never a GPU's)."""

import pytest

from simgpu.recording.trace import Trace
from tools.oracle import store

MIB = 2**20
# workload, GPU: forward adds, allocated after backward, peak and reserved up to there
TRAINING = {
    ("three_linear", "A100-80GB"): (168.125, 168.28173828125, 364.27880859375, 442),
    ("three_linear", "H100"): (192, 216.03173828125, 412.02880859375, 486),
    ("half_linear_2", "A100-80GB"): (48.125, 60.25048828125, 120.2509765625, 142),
    ("half_linear_2", "H100"): (72, 108.00048828125, 168.0009765625, 186),
    ("half_linear_10", "A100-80GB"): (208.125, 60.25048828125, 280.2509765625, 302),
    ("half_linear_10", "H100"): (232, 108.00048828125, 328.0009765625, 346),
    ("bert_base_eager_fp32", "A100-80GB"): (13931.34765625, 902.83740234375, 15002.357421875, 15930),
    ("bert_base_eager_fp32", "H100"): (13955.22265625, 950.83740234375, 15050.107421875, 15978),
    ("bert_base_sdpa_fp32", "A100-80GB"): (9332.34765625, 903.58740234375, 10056.21240234375, 10182),
    ("bert_base_sdpa_fp32", "H100"): (9356.22265625, 951.08740234375, 10103.96240234375, 10230),
}
# workload, GPU: forward adds, peak
INFERENCE = {
    ("bert_base_eager_fp32_inference", "A100-80GB"): (56.21875, 1434.9794921875),
    ("bert_base_eager_fp32_inference", "H100"): (80.09375, 1458.8544921875),
}


def stages(workload, gpu):
    return {stage.name: stage for stage in Trace.load(store.path(workload, gpu)).stages}


@pytest.mark.parametrize(("workload", "gpu"), TRAINING)
def test_training_figures(workload, gpu):
    at = stages(workload, gpu)
    upto = [at[name] for name in ("model", "input", "forward", "loss", "backward")]
    found = (
        at["forward"].allocated - at["input"].allocated,
        at["backward"].allocated,
        max(stage.peak for stage in upto),
        max(stage.reserved for stage in upto),
    )
    assert tuple(value / MIB for value in found) == TRAINING[workload, gpu]


@pytest.mark.parametrize(("workload", "gpu"), INFERENCE)
def test_inference_figures(workload, gpu):
    at = stages(workload, gpu)
    adds, peak = at["forward"].allocated - at["input"].allocated, max(stage.peak for stage in at.values())
    assert (adds / MIB, peak / MIB) == INFERENCE[workload, gpu]
