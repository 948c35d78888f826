"""The counter of requested bytes."""

import torch

import labkit


def test_requested_is_what_tensors_ask_for_and_its_peak_what_they_asked_for_at_most():
    with labkit.simulated_gpu("A100-80GB"):
        assert labkit.requested() == labkit.requested(peak=True) == 0
        x = torch.zeros(1001, device="cuda")
        y = torch.zeros(3, dtype=torch.int8, device="cuda")
        assert labkit.requested() == x.nbytes + y.nbytes == 4007
        x = None
        assert (labkit.requested(), labkit.requested(peak=True)) == (3, 4007)
        torch.cuda.reset_peak_memory_stats()
        assert labkit.requested(peak=True) == 3
        assert x is None
