"""DataLoaders on the simulated GPU: workers, prefetching and the thread that pins have lanes of their own."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader, get_worker_info

import labkit
import simgpu
from simgpu.clock import rates
from simgpu.clock.clock import Clock
from simgpu.clock.workers import Loading, WorkerHost
from simgpu.gpus.specs import spec

A100 = spec("A100-80GB")
SAMPLES, BATCH, EACH = 24, 4, 1e-3


class Slow(Dataset):
    """Samples that take their time, each its own number."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        labkit.host_work(EACH, "decodes")
        return torch.full((256,), float(index))


class Shared(IterableDataset):
    """The same, dealt out among the workers."""

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, SAMPLES, step):
            labkit.host_work(EACH)
            yield torch.full((256,), float(index))


@pytest.fixture
def gpu():
    with labkit.simulated_gpu("A100-80GB") as gpu:
        yield gpu


def epoch(loader, each=0.0):
    """Milliseconds of an epoch whose steps keep the host busy for so long, and the first number of each batch."""
    seen = []
    with labkit.stopwatch(lanes=True) as timing:
        for batch in loader:
            labkit.host_work(each, "step")
            seen.append(int(batch[0, 0]))
    return timing, seen


@pytest.mark.parametrize(("workers", "alone"), [(0, 1), (1, 1), (2, 2), (3, 3)])
@pytest.mark.parametrize("data", [Slow, Shared])
def test_workers_share_the_work(gpu, data, workers, alone):
    timing, seen = epoch(DataLoader(data(), batch_size=BATCH, num_workers=workers))
    assert timing.ms == pytest.approx(1e3 * SAMPLES * EACH / alone, abs=0.1)
    assert len(seen) == SAMPLES / BATCH and (data is Shared or seen == list(range(0, SAMPLES, BATCH)))


def test_workers_are_hidden_behind_longer_steps(gpu):
    step = 5e-3
    timing, _ = epoch(DataLoader(Slow(), batch_size=BATCH, num_workers=1), step)
    batches = SAMPLES / BATCH
    assert timing.ms == pytest.approx(1e3 * (BATCH * EACH + batches * step), abs=0.1)  # the first is waited for
    alone, _ = epoch(DataLoader(Slow(), batch_size=BATCH), step)
    assert alone.ms == pytest.approx(1e3 * batches * (BATCH * EACH + step), abs=0.1)


def test_no_more_batches_are_asked_for_than_prefetch_factor_allows(gpu):
    loader = DataLoader(Slow(), batch_size=BATCH, num_workers=1, prefetch_factor=1)
    with labkit.stopwatch(lanes=True) as timing:
        iterator = iter(loader)
        next(iterator)
        labkit.host_work(1.0)
        next(iterator)
        labkit.host_work(1.0)
        list(iterator)
    worked = [one for one in reversed(timing.lanes) if "worker" in one.lane]
    starts = sorted({one.name.partition(":")[0]: one.start for one in worked}.values())
    second, third = starts[1:3]
    assert second == pytest.approx(1e3 * BATCH * EACH, abs=0.1)  # asked for when the first was taken
    assert third == pytest.approx(1e3 * (BATCH * EACH + 1), abs=0.1)


@pytest.mark.parametrize("workers", [0, 1])
def test_pinning_takes_the_time_of_a_copy(gpu, workers):
    class Large(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.zeros(2**20)

    loader = DataLoader(Large(), batch_size=2, num_workers=workers, pin_memory=True)
    with labkit.stopwatch(lanes=True) as timing:
        pinned = [batch.is_pinned() for batch in loader]
    one = 1e3 * 2 * 2**22 / (A100.host_link * rates.PAGEABLE)
    assert pinned == [True, True]
    assert timing.ms == pytest.approx(2 * one, abs=0.1)
    lane = "pinning thread" if workers else "host"
    assert [one.end - one.start for one in timing.lanes if one.lane == lane and "issues" not in one.name][:2] == (
        pytest.approx([one, one], rel=1e-3)
    )


def test_persistent_workers_work_in_every_epoch(gpu):
    loader = DataLoader(Slow(), batch_size=BATCH, num_workers=2, persistent_workers=True)
    first, second = epoch(loader), epoch(loader)
    assert first[1] == second[1]
    assert first[0].ms == pytest.approx(second[0].ms, abs=0.1) == pytest.approx(1e3 * SAMPLES * EACH / 2, abs=0.1)


def test_lanes_say_who_did_what(gpu):
    timing, _ = epoch(DataLoader(Slow(), batch_size=BATCH, num_workers=2), 1e-3)
    worked = {}
    for one in timing.lanes:
        worked[one.lane, one.name.rpartition(": ")[2]] = worked.get((one.lane, one.name.rpartition(": ")[2]), 0) + (
            one.end - one.start
        )
    half = 1e3 * SAMPLES * EACH / 2
    assert worked["worker 0", "decodes"] == pytest.approx(half) == pytest.approx(worked["worker 1", "decodes"])
    assert worked["host", "step"] == pytest.approx(SAMPLES / BATCH)
    assert worked["host", "waits for a batch"] + worked["host", "step"] == pytest.approx(timing.ms, abs=0.1)
    drawn = labkit.plots.who_waits(timing, "a test")
    assert "worker 0: worker 12 ms" in drawn.description and drawn.axes[0].get_yticklabels()[0].get_text() == "worker 0"


def test_a_worker_s_error_is_the_worker_s(gpu):
    class Broken(Slow):
        def __getitem__(self, index):
            raise KeyError(index)

    with pytest.raises(KeyError):
        next(iter(DataLoader(Broken(), num_workers=1)))


def test_the_order_of_processes_is_told(gpu):
    with pytest.warns(UserWarning, match="in the order in which this machine's processes finish"):
        assert sorted(epoch(DataLoader(Slow(), batch_size=BATCH, num_workers=2, in_order=False))[1]) == list(
            range(0, SAMPLES, BATCH)
        )


def test_an_iterator_outlives_the_gpu_and_pytorch_s_are_back():
    real = dataloader._MultiProcessingDataLoaderIter
    with labkit.simulated_gpu("A100-80GB"):
        assert dataloader._MultiProcessingDataLoaderIter is not real
        iterator = iter(DataLoader(Slow(), batch_size=BATCH, num_workers=1))
        next(iterator)
    assert dataloader._MultiProcessingDataLoaderIter is real
    assert int(next(iterator)[0, 0]) == BATCH


# The bookkeeping alone


def test_a_worker_does_one_batch_after_the_other():
    clock = Clock(A100)
    loading = Loading(clock, 2)
    for batch in range(4):
        loading.asked(batch, batch % 2)
    ready = []
    for batch, seconds in enumerate((3.0, 1.0, 1.0, 1.0)):
        loading.taken(batch, [("work", seconds)], None)
        ready.append(clock.host)
    assert ready == [3.0, 3.0, 4.0, 4.0]


def test_what_a_worker_notes_is_sent_once():
    host = WorkerHost()
    host.pass_time(1.0)
    host.pass_time(2.0, "more")
    assert host.taken() == [("host work", 1.0), ("more", 2.0)] and host.taken() == []
    with pytest.raises(ValueError, match="cannot work for -1"):
        host.pass_time(-1)


def test_nothing_is_kept_of_lanes_without_asking(gpu):
    with labkit.stopwatch() as timing:
        torch.ones(3, device="cuda")
    assert timing.lanes == () and simgpu.device.machine.current().clock.lanes is None


def test_stopwatches_with_lanes_nest(gpu):
    with labkit.stopwatch(lanes=True) as outer:
        labkit.host_work(1e-3, "before")
        with labkit.stopwatch(lanes=True) as inner:
            labkit.host_work(2e-3, "inside")
    assert [one.name for one in inner.lanes if one.lane == "host"] == ["inside"]
    assert [one.name for one in outer.lanes if one.lane == "host"] == ["before", "inside"]
    assert inner.lanes[0].start == pytest.approx(0.0, abs=0.05)


def test_whoever_pins_himself_takes_the_time_of_a_copy(gpu):
    x = torch.zeros(2**20)
    with labkit.stopwatch() as pinning:
        pinned = x.pin_memory()
    assert pinning.ms == pytest.approx(1e3 * x.nbytes / (A100.host_link * rates.PAGEABLE), abs=0.02)
    with labkit.stopwatch() as again, labkit.stopwatch() as empty:
        assert pinned.pin_memory() is pinned  # it is pinned already
        torch.empty(2**20, pin_memory=True)  # nothing is copied
    assert again.ms == pytest.approx(empty.ms, abs=0.02)
    with labkit.stopwatch() as both:
        x.pin_memory().to("cuda", non_blocking=True)
    with labkit.stopwatch() as plain:
        x.to("cuda")
    assert both.ms > plain.ms  # the copy into pinned memory is what the driver does, too


def test_the_thread_that_pins_does_not_hold_up_the_host(gpu):
    class Large(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return {"x": torch.zeros(2**20), "rows": [torch.zeros(2**18)]}

    one = 1e3 * 5 * 2**20 / (A100.host_link * rates.PAGEABLE)
    loader = DataLoader(Large(), batch_size=None, num_workers=2, pin_memory=True)
    with labkit.stopwatch() as timing:
        for batch in loader:
            assert batch["x"].is_pinned() and batch["rows"][0].is_pinned()
            labkit.host_work(one / 1e3, "step")
    assert timing.ms == pytest.approx(5 * one, rel=0.01)  # the first is waited for, the others are pinned meanwhile
