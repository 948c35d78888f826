"""Operators that go by values, where those are known: the oracle's events, to which the same values were given."""

import warnings

import simgpu
from tools.oracle import cases

SMOOTHED = """
x = torch.zeros(5, 4, device='cuda', requires_grad=True)
t = torch.tensor([0, 1, 2, 3, 2], device='cuda')
w = torch.ones(4, device='cuda')
F.cross_entropy(x, t, w, label_smoothing=0.1, ignore_index=2).backward()
"""
EVENTS = (
    "S2097152 a80 a40 a16 a80 a4 a4 a80 a20 a20 f20 f80 a5 a5 a4 a1 f1 a24 a1023 f1023 f4 a24 f24 a12 a4 a4 a4 f4 f12 "
    "f24 f5 a4 a4 a4 f4 f4 f4 f20 f4 a4 a4 a4 a4 f4 f4 a20 f4 f5 a20 f20 a80 f20 a80 f4 f4 f80 a80 f80 f80 f4 f4 f80 "
    "f80 f40 f16"
)


def test_smoothed_labels_with_weights_of_targets_that_are_known():
    with simgpu.simulated_gpu("H100"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cases.outcomes([SMOOTHED]) == [(EVENTS, None, "")]
