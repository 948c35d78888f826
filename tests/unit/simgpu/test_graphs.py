"""CUDA graphs and private pools. The figures and events are the oracle's."""

import gc
import inspect

import pytest
import torch
from torch import nn

import simgpu
from tests import versions

MiB = 2**20


@pytest.fixture(autouse=True)
def gpu():
    with simgpu.simulated_gpu("H100"):
        yield


def events():
    """The events since the last call: action, bytes, whether on another stream than the default, id of the pool (which
    torch 2.11 does not say: here that of the graphs on their streams)."""
    history = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    return [
        (event["action"], event["size"], event["stream"] != 0, event.get("pool_id", (int(event["stream"] != 0), 0)))
        for event in history
        if event["action"] not in ("free_requested", "snapshot")
    ]


def test_a_capture_takes_a_pool_of_its_own_and_a_replay_nothing():
    x, w = torch.ones(1000, device="cuda"), torch.ones(1000, 1000, device="cuda")
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        z = (y + 1) * 3
        u = w @ w
        d = torch.rand(1000, device="cuda")
    seed = ("alloc", 8, False, (0, 0))
    assert events() == [
        *(seed, seed),
        ("segment_alloc", 2097152, True, (1, 0)),
        *[("alloc", 4000, True, (1, 0))] * 3,
        ("free_completed", 4000, True, (1, 0)),
        ("segment_alloc", 20971520, True, (1, 0)),
        ("alloc", 4000000, True, (1, 0)),
        ("segment_alloc", 33554432, True, (1, 0)),
        ("alloc", 33554432, True, (1, 0)),
        ("alloc", 4000, True, (1, 0)),
    ]
    assert (graph.pool(), torch.cuda.graph_pool_handle()) == ((1, 0), (0, 1))
    graph.replay()
    graph.replay()
    assert events() == []
    other = x * 2
    assert events() == [("alloc", 4000, False, (0, 0))]
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()):
        v = w @ w
        t = nn.functional.dropout(v)
    assert events() == [
        *(seed, seed),
        ("alloc", 4000000, True, (1, 0)),
        ("alloc", 1000000, True, (1, 0)),
        ("alloc", 4000000, True, (1, 0)),
        ("free_completed", 1000000, True, (1, 0)),
    ]
    state = ("free_completed", 8, False, (0, 0))
    del second, v, t
    gc.collect()
    assert events() == [
        *(state, state),
        ("free_completed", 33554432, True, (1, 0)),
        *[("free_completed", 4000000, True, (1, 0))] * 2,
    ]
    torch.cuda.empty_cache()
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    assert events() == [state, state, ("segment_free", 33554432, True, (1, 0))]
    del y, z, u, d
    torch.cuda.empty_cache()
    assert events()[-2:] == [("segment_free", 2097152, True, (1, 0)), ("segment_free", 20971520, True, (1, 0))]
    assert (torch.cuda.memory_allocated(), other.numel()) == (4008448, 1000)


def test_a_replay_is_one_launch_of_the_clock():
    w = torch.ones(4096, 4096, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            w @ w
    clock = simgpu.device.machine.current().clock
    torch.cuda.synchronize()
    before = clock.host
    graph.replay()
    issued = clock.host - before
    torch.cuda.synchronize()
    replayed = clock.host - before
    before = clock.host
    for _ in range(10):
        w @ w
    torch.cuda.synchronize()
    assert issued < 1e-4 < replayed <= clock.host - before


@pytest.mark.parametrize(
    "body",
    [
        "torch.cuda.synchronize()",
        "torch.accelerator.synchronize()",
        "torch.cuda.current_stream().synchronize()",
        "torch.cuda.current_stream().query()",
        "x.sum().item()",
        "e = torch.cuda.Event(); e.record(); e.synchronize()",
        "e = torch.cuda.Event(); e.record(); e.query()",
    ],
)
def test_what_a_capture_does_not_permit(body):
    x = torch.ones(1000, device="cuda")
    with (
        pytest.raises(
            torch.AcceleratorError, match="operation failed due to a previous error during capture"
        ) as raised,
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        exec(body, {"torch": torch, "x": x})
    assert "operation not permitted when stream is capturing" in str(raised.value.__context__)
    assert torch.cuda.current_stream().stream_id == 3 and not torch.cuda.is_current_stream_capturing()


@pytest.mark.parametrize("body", ["x.cpu()", "torch.ones(3).cuda()", "torch.tensor([1.0], device='cuda')"])
def test_copies_of_what_is_not_pinned(body):
    x = torch.ones(1000, device="cuda")
    failed = pytest.raises(RuntimeError, match="unless the CPU tensor is pinned")
    with failed, torch.cuda.graph(torch.cuda.CUDAGraph()):
        y = x * 2
        exec(body, {"torch": torch, "x": y})
    assert torch.cuda.current_stream().stream_id == 0


def test_misuse_of_graphs():
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        graph.capture_begin()
    with pytest.warns(UserWarning, match="The CUDA Graph is empty") as warned, torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
    body, first = inspect.getsourcelines(torch.cuda.CUDAGraph.capture_end)  # the oracle's place: C++ is called there
    assert warned[0].filename == inspect.getsourcefile(torch.cuda.graph)
    assert first <= warned[0].lineno < first + len(body)
    with pytest.raises(RuntimeError, match="already owns a captured graph"), torch.cuda.graph(graph):
        raise AssertionError("it does not begin")


def test_a_stream_that_waits_for_a_capture_belongs_to_it():
    x = torch.ones(1000, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        y = x * 2
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y * 2
            assert torch.cuda.is_current_stream_capturing()
        torch.cuda.current_stream().wait_stream(side)
    assert {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()} == {(0, 0), (1, 0)}
    assert z.shape == x.shape


def test_graphed_callables_train():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    graphed = torch.cuda.make_graphed_callables(model, (torch.ones(16, 64, device="cuda"),))
    optimizer = torch.optim.SGD(graphed.parameters(), lr=0.1)
    reserved = []
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        graphed(torch.ones(16, 64, device="cuda")).sum().backward()
        optimizer.step()
        reserved.append(torch.cuda.memory_reserved())
    assert len(set(reserved[1:])) == 1


def test_a_pool_of_the_user():
    torch.ones(1000, device="cuda")
    pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
    assert (pool.id, other.id, pool.use_count()) == ((0, 1), (0, 2), 1)
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        a, b = torch.ones(1000, device="cuda"), torch.ones(3 * MiB, device="cuda")
        with torch.cuda.use_mem_pool(other):
            c = torch.ones(100, device="cuda")
    assert [(part["segment_pool_id"], part["total_size"]) for part in pool.snapshot()] == [
        ((0, 1), 2097152),
        ((0, 1), 12582912),
    ]
    stats = torch.cuda.memory_stats()
    if versions.TORCH >= (2, 13):  # whose counters these are
        assert stats["reserved_bytes_by_private_pools.0_1.all.current"] == 14680064
    assert torch.cuda.memory_reserved() == 18874368
    del c, other
    gc.collect()
    assert (torch.cuda.memory_reserved(), torch.cuda.memory_stats()["num_sync_all_streams"]) == (16777216, 1)
    del a, b, pool
    gc.collect()
    assert torch.cuda.memory_reserved() == 2097152


def test_backward_is_not_in_the_pool():
    """Autograd runs it in a thread of its own on a GPU: its cuBLAS workspace is in no pool."""
    layer = nn.Linear(100, 100).cuda()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        layer(torch.ones(4, 100, device="cuda")).sum().backward()
    large = [part["segment_pool_id"] for part in torch.cuda.memory_snapshot() if part["total_size"] == 33554432]
    assert sorted(large) == [(0, 0), (0, 1)]


def test_pools_for_what_finds_no_memory_and_pools_that_are_not_cut():
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        small = torch.ones(10, device="cuda")
    assert (torch.cuda.memory_allocated(), small.numel()) == (2097152, 10)
    spare = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(spare):
        torch.ones(500 * MiB, device="cuda")
    big = torch.empty(75 * 1024 * MiB, dtype=torch.uint8, device="cuda")
    saved = torch.empty(1990 * MiB, dtype=torch.uint8, device="cuda")
    assert (big.numel(), torch.cuda.memory_stats()["num_alloc_retries"]) == (75 * 1024 * MiB, 0)
    del saved
    with pytest.raises(
        torch.OutOfMemoryError, match=r"with 1\.95 GiB allocated in private pools \(e\.g\., CUDA Graphs\)"
    ):
        torch.empty(4000 * MiB, dtype=torch.uint8, device="cuda")


def test_a_pool_is_active_once():
    pool = torch.cuda.MemPool()
    twice = pytest.raises(RuntimeError, match="already recording to mempool_id")
    with torch.cuda.use_mem_pool(pool), twice, torch.cuda.use_mem_pool(pool):
        raise AssertionError("it does not begin")


def test_a_graph_that_is_kept_is_made_executable_as_often_as_wanted():
    """torch/csrc and aten/src/ATen/cuda/CUDAGraph.cpp, instantiate: only with keep_graph; it can be captured again only
    before."""
    graph, other = torch.cuda.CUDAGraph(keep_graph=True), torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capture_end"):
        graph.instantiate()
    for one in (graph, other):
        with torch.cuda.graph(one):
            torch.ones(4, device="cuda")
    graph.instantiate()
    with pytest.raises(RuntimeError, match="already owns a captured graph"), torch.cuda.graph(graph):
        pass
    graph.instantiate()
    with pytest.raises(RuntimeError, match="only when keep_graph=true"):
        other.instantiate()


def test_graphed_callables_cost_the_host_a_launch_each_way():
    def step(model, x):
        model.zero_grad()
        clock = simgpu.device.machine.current().clock
        torch.cuda.synchronize()
        begun = clock.host
        loss = model(x).sum()
        loss.backward()
        issued = clock.host - begun
        torch.cuda.synchronize()
        return issued, clock.host - begun

    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(20))).cuda()
    x = torch.ones(64, 32, device="cuda")
    step(model, x)
    eager = step(model, x)
    graphed = torch.cuda.make_graphed_callables(model, (torch.ones(64, 32, device="cuda"),))
    step(graphed, x)
    replayed = step(graphed, x)
    assert replayed[0] < eager[0] / 5 and replayed[1] < eager[1] / 2


def test_a_captured_training_step_takes_the_kernels_time_and_one_launch():
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(20))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(64, 256, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=False)
        model(x).sum().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    clock, graph = simgpu.device.machine.current().clock, torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    capture = graph._capture
    torch.cuda.synchronize()
    begun = clock.host
    graph.replay()
    torch.cuda.synchronize()
    assert capture.nodes > 60
    assert clock.host - begun == pytest.approx(capture.seconds, abs=5e-5)
