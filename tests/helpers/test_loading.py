"""Datasets whose preparation takes a declared time, in workers and without."""

import pytest
import torch
from torch.utils.data import DataLoader

import labkit
from helpers.loading import Photos, Stream, threads


def test_photos_take_their_time_and_are_images():
    photos = Photos(6, 2e-3, torch.float32, side=8)
    with labkit.simulated_gpu(), labkit.stopwatch(lanes=True) as timing:
        batches = list(DataLoader(photos, 3, num_workers=1))
    assert len(photos) == 6 and [tuple(batch.shape) for batch in batches] == [(3, 3, 8, 8)] * 2
    assert batches[0].dtype == torch.float32
    assert timing.ms == pytest.approx(12, abs=0.1) and timing.bottleneck() == "workers"
    assert timing.busy()["worker 0"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("divided", "times"), [(True, 1), (False, 2)])
def test_a_stream_is_divided_or_comes_from_each_worker(divided, times):
    loader = DataLoader(Stream(6, divided), batch_size=2, num_workers=2)
    assert sorted(torch.cat(list(loader)).tolist()) == sorted([*range(6)] * times)
    assert list(Stream(3, divided)) == [0, 1, 2]


def test_a_worker_computes_with_one_thread():
    assert next(iter(DataLoader(range(1), batch_size=1, collate_fn=threads, num_workers=1))) == 1
    assert threads([]) == torch.get_num_threads()
