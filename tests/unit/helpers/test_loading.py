"""Datasets whose preparation takes a declared time, in workers and without."""

import pytest
import torch
from torch.utils.data import DataLoader

import labkit
from helpers.loading import Photos


def test_photos_take_their_time_and_are_images():
    photos = Photos(6, 2e-3, torch.float32, side=8)
    with labkit.simulated_gpu(), labkit.stopwatch(lanes=True) as timing:
        batches = list(DataLoader(photos, 3, num_workers=1))
    assert len(photos) == 6 and [tuple(batch.shape) for batch in batches] == [(3, 3, 8, 8)] * 2
    assert batches[0].dtype == torch.float32
    assert timing.ms == pytest.approx(12, abs=0.1) and timing.bottleneck() == "workers"
    assert timing.busy()["worker 0"] == pytest.approx(1, abs=0.01)
