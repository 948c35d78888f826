"""With values, memory is what the oracle says as well: some of the stored snippets of each family of rules."""

import pytest
import torch

import simgpu
from tools.oracle import cases

EACH = 30  # one snippet of so many
# What the CPU refuses because of the values, which are random or zeros here; a GPU stops at an assertion.
NO_GOOD = ("binary_cross_entropy(", "multinomial", "BCELoss")
FAMILIES = sorted({*cases.families()} - {"moves"})


@pytest.mark.parametrize("family", FAMILIES)
def test_events_are_the_oracle_s(family):
    recorded = [one for one in cases.load(family)[::EACH] if not any(name in one.code for name in NO_GOOD)]
    assert len(recorded) >= 3
    enabled = torch.backends.cudnn.enabled  # which some of the snippets set
    try:
        for gpu in cases.GPUS:
            wanted = [one for one in recorded if one.gpu == gpu]
            with simgpu.simulated_gpu(gpu, values=True):
                found = cases.outcomes(one.code for one in wanted)
            assert [(one.code, *one[2:]) for one in wanted] == [
                (one.code, *result) for one, result in zip(wanted, found, strict=True)
            ]
    finally:
        torch.backends.cudnn.enabled = enabled
