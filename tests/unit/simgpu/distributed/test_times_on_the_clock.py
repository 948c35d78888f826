"""Collectives on the clock: on which stream they run, who waits for them, and what runs beside them."""

import math
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import labkit
import simgpu
from simgpu.clock import rates
from simgpu.device.machine import on

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed"),
    pytest.mark.filterwarnings("ignore:Attempted to get default timeout"),
]
LINK = 1e9  # bytes/s, without latency
MB = 10**6
ASKING = rates.OPERATOR + rates.LAUNCH + 10 * rates.CALL  # seconds of the host around a collective, at most


@pytest.fixture
def rank():
    """Rank 0 of 4, an all-reduce of S bytes among whom takes 1.5 S / LINK."""
    with simgpu.simulated_gpu("H100", ranks=4, rank=0, link=LINK):
        dist.init_process_group("nccl")
        yield on()


def tensor(megabytes: float) -> torch.Tensor:
    return torch.empty(int(megabytes * MB), dtype=torch.uint8, device="cuda")


def elapsed(work) -> float:
    """Seconds from one event to another on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def multiply(seconds: float) -> None:
    """A kernel of so many seconds on the current stream."""
    on().clock.launch(on().stream, seconds)


def about(seconds: float):
    return pytest.approx(seconds, abs=2 * ASKING)


def test_who_waits_at_once_waits_on_the_current_stream(rank):
    x = tensor(2)
    assert elapsed(lambda: dist.all_reduce(x)) == about(0.003)
    assert elapsed(lambda: dist.all_reduce(x, async_op=True).wait()) == about(0.003)


def test_the_host_goes_on(rank):
    x = tensor(2)
    before = rank.clock.host
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    assert rank.clock.host - before < 2 * ASKING


def test_a_barrier_holds_the_host(rank):
    torch.cuda.synchronize()
    before = rank.clock.host
    multiply(0.002)
    work = dist.barrier(async_op=True)
    assert rank.clock.host - before < 2 * ASKING
    work.wait()
    assert rank.clock.host - before == about(0.002)


def test_what_runs_asynchronously_runs_beside_kernels(rank):
    x = tensor(2)

    def overlapped():
        work = dist.all_reduce(x, async_op=True)
        multiply(0.002)
        work.wait()

    def one_after_the_other():
        dist.all_reduce(x)
        multiply(0.002)

    assert elapsed(overlapped) == about(0.003)
    assert elapsed(one_after_the_other) == about(0.005)


def test_it_begins_after_what_the_current_stream_was_given(rank):
    x = tensor(2)

    def both():
        multiply(0.002)
        dist.all_reduce(x, async_op=True).wait()

    assert elapsed(both) == about(0.005)


def test_collectives_of_one_group_run_one_after_another_and_share_the_link_with_others(rank):
    x, other = tensor(2), dist.new_group([0, 1, 2, 3])

    def twice(group):
        works = [dist.all_reduce(x, async_op=True), dist.all_reduce(x, group=group, async_op=True)]
        for work in works:
            work.wait()

    assert elapsed(lambda: twice(None)) == about(0.006)
    assert elapsed(lambda: twice(other)) == about(0.006)


def test_nobody_waits_for_what_nobody_waits_for(rank):
    x = tensor(2)
    assert elapsed(lambda: dist.all_reduce(x, async_op=True)) == about(0)
    torch.cuda.synchronize()
    assert rank.clock.host >= 0.003  # all streams


def test_asking_whether_it_is_done_ends(rank):
    work = dist.all_reduce(tensor(2), async_op=True)
    asked = 0
    while not work.is_completed():
        asked += 1
    assert asked == pytest.approx(0.003 / rates.CALL, rel=0.1)
    assert work.is_success()


@pytest.mark.parametrize(
    ("collective", "times"),
    [
        (lambda x, whole: dist.all_gather_into_tensor(whole, x), 3),
        (lambda x, whole: dist.all_gather([x.clone() for _ in range(4)], x), 3),
        (lambda x, whole: dist.reduce_scatter_tensor(x, whole), 3),
        (lambda x, whole: dist.all_to_all_single(torch.empty_like(whole), whole), 3),
        (lambda x, whole: dist.broadcast(x, 0), 1),
        (lambda x, whole: dist.reduce(x, 0), 1),
        (lambda x, whole: dist.send(x, 1), 1),
        (lambda x, whole: dist.recv(x, 3), 1),
        (lambda x, whole: dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)])[0].wait(), 1),
    ],
)
def test_each_kind_takes_the_bytes_that_it_moves(rank, collective, times):
    x, whole = tensor(2), tensor(8)
    assert elapsed(lambda: collective(x, whole)) == pytest.approx(times * 0.002, rel=0.02, abs=5e-5)


@pytest.mark.parametrize("number", [0, 1])
def test_gather_and_scatter_take_as_long_on_each_rank_as_all_parts_on_the_roots_link(number):
    with simgpu.simulated_gpu("H100", ranks=4, rank=number, link=LINK):
        dist.init_process_group("nccl")
        x, parts = tensor(2), [tensor(2) for _ in range(4)] if number == 0 else None
        assert elapsed(lambda: dist.gather(x, parts, dst=0)) == about(0.006)
        assert elapsed(lambda: dist.scatter(x, parts, src=0)) == about(0.006)


def test_a_message_each_way_at_once(rank):
    x, y = tensor(2), tensor(2)

    def both():
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, y, 1)]):
            work.wait()

    assert elapsed(both) == about(0.002)


def test_several_in_one_call(rank):
    parts = [tensor(1) for _ in range(4)]

    def coalesced():
        with dist._coalescing_manager(async_ops=True) as manager:
            for part in parts:
                dist.all_reduce(part)
        manager.wait()

    assert elapsed(coalesced) == about(0.006)


def test_functional_collectives_are_waited_for_where_they_are_used(rank):
    import torch.distributed._functional_collectives as functional

    x = tensor(2)

    def used():
        y = functional.all_reduce(x, "sum", dist.group.WORLD)
        multiply(0.002)
        y + 1

    assert elapsed(used) == about(0.003)


def test_alone_and_on_free_links_nothing_takes_time():
    for world in ({"ranks": 1}, {"ranks": 4, "link": math.inf}):
        with simgpu.simulated_gpu("H100", **world):
            dist.init_process_group("nccl")
            x = tensor(200)
            assert elapsed(lambda x=x: dist.all_reduce(x)) == about(0)


def test_gloo_takes_no_time(rank):
    group = dist.new_group(backend="gloo")
    before = rank.clock.host
    dist.all_reduce(torch.zeros(MB), group=group)
    assert rank.clock.host == before


def layers(count=8, width=1024) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(width, width, bias=False, device="cuda") for _ in range(count)])


def timed(model, x):
    for _ in range(2):  # DDP makes its buckets anew after the first step
        model(x).sum().backward()
    with labkit.stopwatch("step", lanes=True) as timing:
        model(x).sum().backward()
    return timing


def spans(timing, lane):
    return [(one.start, one.end) for one in timing.lanes if one.lane == lane]


def test_ddp_reduces_its_buckets_beside_the_backward_pass(rank):
    model = nn.parallel.DistributedDataParallel(layers(), bucket_cap_mb=8, gradient_as_bucket_view=True)
    x = torch.empty(16384, 1024, device="cuda")
    timing = timed(model, x)
    moved = spans(timing, "communication")
    seconds = sum(end - begin for begin, end in moved)
    assert len(moved) >= 4
    assert seconds == pytest.approx(1.5 * 8 * 4 * 1024**2 / LINK * 1e3, rel=0.01)
    last_kernel = max(end for _, end in spans(timing, "compute"))
    assert moved[0][0] < last_kernel < timing.ms
    assert timing.ms == pytest.approx(moved[-1][1], rel=0.01)  # the last bucket is waited for
    with model.no_sync(), labkit.stopwatch(lanes=True) as alone:
        model(x).sum().backward()
    assert not spans(alone, "communication")
    assert timing.ms < alone.ms + seconds
    assert timing.busy()["communication"] == pytest.approx(seconds / timing.ms)


def test_ddp_waits_before_what_comes_after_the_backward_pass(rank):
    model = nn.parallel.DistributedDataParallel(layers(2), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with labkit.stopwatch(lanes=True) as timing:
            model(torch.empty(64, 1024, device="cuda")).sum().backward()
            optimizer.step()
    done = spans(timing, "communication")[-1][1]
    assert [one for one in spans(timing, "compute") if one[0] >= done]


def test_fsdp_gathers_the_next_layer_while_one_computes(rank):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cuda", (4,))
    model = layers()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    timing = timed(model, torch.empty(65536, 1024, device="cuda"))
    moved, kernels = spans(timing, "communication"), spans(timing, "compute")
    names = [one.name for one in timing.lanes if one.lane == "communication"]
    assert names.count("reduce_scatter") == 8 and names.count("all_gather") >= 15  # forward, and again but one
    beside = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in moved for b in kernels)
    assert beside > 0.5 * sum(end - begin for begin, end in moved)


def test_links_change_no_memory():
    def peaks(link):
        with simgpu.simulated_gpu("H100", ranks=4, rank=0, link=link):
            dist.init_process_group("nccl")
            model = nn.parallel.DistributedDataParallel(layers())
            timed(model, torch.empty(64, 1024, device="cuda"))
            stats = torch.cuda.memory_stats()
            return stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"], stats["num_alloc_retries"]

    assert peaks(math.inf) == peaks(1e6) == peaks(None)


def test_the_figure_has_a_row_for_communication(rank):
    with labkit.stopwatch("all-reduce", lanes=True) as timing:
        dist.all_reduce(tensor(2))
    figure = labkit.plots.who_waits(timing)
    assert "communication: communication 3 ms" in figure.description
    assert timing.bottleneck() == "communication"


def test_a_work_that_outlives_its_gpu_waits_for_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with simgpu.simulated_gpu("H100", ranks=2, rank=1):
            dist.init_process_group("nccl")
            work = dist.all_reduce(tensor(1), async_op=True)
    assert work.wait()
