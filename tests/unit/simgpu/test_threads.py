"""Threads and tasks: a thread that is started inside a simulated GPU sees it; two GPUs at once are refused or right."""

import _thread
import asyncio
import atexit
import concurrent.futures
import contextlib
import gc
import multiprocessing.pool
import queue
import threading
import warnings

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

import labkit
import simgpu
from simgpu import session
from simgpu.errors import NotModelledError
from tests.unit.simgpu.states import assert_same, state


def counters() -> dict:
    return {
        name: torch.cuda.memory_stats()[f"{name}.all.{kind}"]
        for name, kind in (
            ("allocated_bytes", "peak"),
            ("allocated_bytes", "current"),
            ("allocation", "allocated"),
            ("segment", "current"),
        )
    }


def step():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).to(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(32, 64, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.is_cuda and loss.device == torch.device("cuda", 0)


def in_thread(action):
    """The result of an action in a thread of its own, or its exception."""
    found = []

    def run():
        try:
            found.append(action())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def measured(run) -> dict:
    with simgpu.simulated_gpu("A100-80GB"):
        run(step)
        return counters()


def in_pool(action):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(action).result()


def in_older_pool(action):
    POOL.submit(action).result()


def by_asyncio(action):
    asyncio.run(asyncio.to_thread(action))


def in_older_thread_pool(action):
    OLDER.apply(action)


def in_a_bare_thread(action):
    ended = _thread.allocate_lock()
    ended.acquire()

    def run():
        try:
            action()
        finally:
            ended.release()

    _thread.start_new_thread(run, ())
    ended.acquire()


def in_a_timer(action):
    found = []
    timer = threading.Timer(0, lambda: found.append(action()))
    timer.start()
    timer.join()
    assert found == [None]


def in_a_subclass_inside_a_thread(action):
    class Inner(threading.Thread):
        def run(self):
            action()
            self.ended = True

    def outer():
        thread = Inner()
        thread.start()
        thread.join()
        assert thread.ended

    in_thread(outer)


def by_the_loops_executor(action):
    async def main():
        await asyncio.get_running_loop().run_in_executor(None, action)

    asyncio.run(main())


def mapped_by_a_pool(action):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert list(pool.map(lambda _: action(), [1])) == [None]


def by_a_method_of_a_thread_pool(name, *given):
    def run(action):
        with multiprocessing.pool.ThreadPool(1) as pool:
            found = getattr(pool, name)(lambda *_: action(), *given)
            assert list(found.get() if hasattr(found, "get") else found) == [None]

    run.__name__ = name
    return run


def in_a_callback_of_a_future(action):
    found, go = [], threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(go.wait).add_done_callback(lambda _: found.append(action()))
        go.set()
    assert found == [None]


POOL = concurrent.futures.ThreadPoolExecutor(1)
POOL.submit(int).result()  # its thread is there before any GPU
OLDER = multiprocessing.pool.ThreadPool(1)
atexit.register(OLDER.terminate)
WAYS = [
    in_thread,
    in_pool,
    in_older_pool,
    by_asyncio,
    in_older_thread_pool,
    in_a_bare_thread,
    in_a_timer,
    in_a_subclass_inside_a_thread,
    by_the_loops_executor,
    mapped_by_a_pool,
    *(by_a_method_of_a_thread_pool(name, [1]) for name in ("map", "map_async", "imap", "imap_unordered")),
    *(by_a_method_of_a_thread_pool(name, [(1,)]) for name in ("starmap", "starmap_async")),
    in_a_callback_of_a_future,
]


@pytest.mark.parametrize("run", WAYS)
def test_a_thread_counts_as_the_main_thread(run):
    assert measured(run) == measured(lambda action: action())


def test_a_thread_that_does_not_see_the_gpu_is_told_so_however_the_gpu_was_entered():
    asked, said = queue.SimpleQueue(), queue.SimpleQueue()

    def answer():
        try:
            said.put(asked.get()())
        except Exception as error:
            said.put(str(error))

    thread = threading.Thread(target=answer)
    thread.start()
    with torch._C.DisableTorchFunction(), simgpu.simulated_gpu("T4"):
        asked.put(lambda: torch.empty(1, device="cuda"))
        assert "is not seen here" in said.get()
    thread.join()


def test_a_thread_inside_two_gpus():
    with simgpu.simulated_gpu("A100-80GB"):
        assert measured(in_thread) == measured(lambda action: action())
        assert torch.cuda.memory_allocated() == 0


def test_what_a_thread_makes_goes_on_in_the_main_thread():
    with simgpu.simulated_gpu("A100-80GB"):
        x = in_thread(lambda: torch.randn(1000, device="cuda", requires_grad=True))
        assert x.is_cuda and torch.cuda.memory_allocated() == 4096
        (x * 2).sum().backward()
        assert x.grad.is_cuda


def test_many_threads_at_once():
    with simgpu.simulated_gpu("A100-80GB"):

        def loop():
            for size in range(1, 200):
                y = torch.empty(size, 100, device="cuda")
                y = y @ y.t()
            del y

        threads = [threading.Thread(target=loop) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.cuda.memory_allocated() == 4 * 8519680  # each thread's workspace of cuBLAS
        stats = torch.cuda.memory_stats()
        assert stats["allocation.all.allocated"] == 4 * (2 * 199 + 1)
        assert stats["allocation.all.freed"] == 4 * 2 * 199


def test_a_data_loader_that_pins():
    with warnings.catch_warnings(), simgpu.simulated_gpu("A100-80GB"):
        warnings.simplefilter("ignore")
        data = torch.utils.data.TensorDataset(torch.randn(64, 8))
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=16, pin_memory=True, num_workers=1):
            assert batch.cuda(non_blocking=True).is_cuda


def test_a_second_gpu_in_another_thread_is_refused():
    with simgpu.simulated_gpu("A100-80GB"):

        def another():
            with simgpu.simulated_gpu("H100"):
                pass

        with pytest.raises(RuntimeError, match="the simulated A100-80GB of another thread is on"):
            in_thread(another)
        assert torch.ones(1, device="cuda").is_cuda
    assert session._sessions == []


def test_leaving_in_another_thread_is_refused():
    gpu = simgpu.simulated_gpu("A100-80GB")
    gpu.__enter__()
    current = session._sessions[-1]
    with pytest.raises(RuntimeError, match="entered in another thread"):
        in_thread(current.stop)
    assert torch.ones(1, device="cuda").is_cuda
    gpu.__exit__(None, None, None)
    assert session._sessions == [] and _get_current_function_mode_stack() == []


def test_a_gpu_whose_thread_has_ended_is_left_by_anybody():
    gpu = simgpu.simulated_gpu("A100-80GB")
    in_thread(gpu.__enter__)
    assert torch.cuda.is_available()
    gpu.__exit__(None, None, None)
    assert session._sessions == [] and not torch.cuda.is_available()
    in_thread(gpu.__enter__)
    with simgpu.simulated_gpu("H100"):
        assert torch.ones(1, device="cuda").is_cuda
        assert [one.machine.spec.key for one in session._sessions] == ["H100"]
    assert session._sessions == []


def test_use_gpu_in_two_threads(capsys):
    def another():
        with pytest.raises(RuntimeError, match="entered in another thread"):
            labkit.use_gpu("H100")

    labkit.use_gpu("A100-80GB")
    try:
        in_thread(another)
        assert torch.ones(1, device="cuda").is_cuda
        assert labkit.use_gpu("H100").name == "H100"
        assert torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3"
    finally:
        labkit.gpu.leave()
    assert session._sessions == []


def test_an_older_thread_is_told_that_it_does_not_see_the_gpu():
    work, done = queue.Queue(), queue.Queue()

    def worker():
        while (action := work.get()) is not None:
            try:
                done.put(action())
            except Exception as error:
                done.put(error)

    thread = threading.Thread(target=worker)
    thread.start()
    try:
        with simgpu.simulated_gpu("A100-80GB"):
            for make in (torch.empty, torch.ones, torch.randn):
                work.put(lambda make=make: make(10, device="cuda"))
                error = done.get()
                assert isinstance(error, NotModelledError) and "is not seen here" in str(error)
    finally:
        work.put(None)
        thread.join()


def test_leaving_in_another_order():
    found = torch.cuda.Stream, torch.Tensor.record_stream
    outer, inner = simgpu.simulated_gpu("A100-80GB"), simgpu.simulated_gpu("H100")
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3"
    assert torch.ones(1, device="cuda").is_cuda
    inner.__exit__(None, None, None)
    assert session._sessions == [] and _get_current_function_mode_stack() == []
    assert (torch.cuda.Stream, torch.Tensor.record_stream) == found


def test_leaving_in_another_order_and_entering_the_first_again():
    """What PyTorch asks to know whether a dispatch mode is on is as it was found."""
    before = state()
    outer, inner = simgpu.simulated_gpu("A100-80GB"), simgpu.simulated_gpu("H100")
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    with outer:
        assert torch.cuda.get_device_name() == "NVIDIA A100-SXM4-80GB"
    assert torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3"
    inner.__exit__(None, None, None)
    assert session._sessions == []
    assert_same(before, state())


def suspended(name):
    with simgpu.simulated_gpu(name):
        yield torch.cuda.get_device_name()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the other thread is told so
def test_a_gpu_whose_holder_is_collected_in_another_thread():
    before = state()
    held = [suspended("T4")]
    assert next(held[0]) == "Tesla T4"
    in_thread(held.clear)
    with simgpu.simulated_gpu("H100"):
        assert [one.machine.spec.key for one in session._sessions] == ["H100"]
    with simgpu.simulated_gpu("H100"):
        held = [suspended("T4")]
        next(held[0])
        in_thread(held.clear)
    assert session._sessions == []
    assert_same(before, state())


def test_a_task_that_nobody_has_any_more_leaves_its_gpu():
    async def forever():
        with simgpu.simulated_gpu("A100-80GB"):
            await asyncio.Event().wait()

    def abandoned():
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: None)  # it would say "Task was destroyed but it is pending"
        task = loop.create_task(forever())
        loop.run_until_complete(asyncio.sleep(0))
        assert torch.cuda.is_available() and not task.done()
        loop.close()

    before = state()
    abandoned()
    gc.collect()
    assert session._sessions == [] and not torch.cuda.is_available()
    assert_same(before, state())


def test_two_tasks_of_asyncio():
    async def one(name, seconds):
        with simgpu.simulated_gpu(name):
            await asyncio.sleep(seconds)
            return torch.cuda.get_device_name()

    async def both():
        return await asyncio.gather(one("H100", 0.05), one("T4", 0.01), return_exceptions=True)

    first, second = asyncio.run(both())
    assert first == "NVIDIA H100 80GB HBM3"
    assert isinstance(second, RuntimeError) and "of another task is on" in str(second)
    assert session._sessions == []


def test_a_thread_that_outlives_its_gpu():
    go = threading.Event()
    with simgpu.simulated_gpu("A100-80GB"):
        thread = threading.Thread(target=go.wait)
        thread.start()
    go.set()
    thread.join()
    with simgpu.simulated_gpu("A100-80GB"):
        assert torch.ones(1, device="cuda").is_cuda


ENTRIES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "a device": lambda: torch.device("cpu"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "another mode": torch.overrides.BaseTorchFunctionMode,
    "hooks of saved tensors": torch.autograd.graph.save_on_cpu,
    "a dispatch mode": lambda: torch.utils.flop_counter.FlopCounterMode(display=False),
}


def test_hooks_of_saved_tensors_that_are_set_around_the_gpu_see_it():
    """A step keeps what autograd saves on the host, as where they are set inside; and they are as before after it."""

    def kept(outer, inner):
        with outer(), simgpu.simulated_gpu("A100-80GB"), inner():
            x = torch.ones(1000, device="cuda", requires_grad=True)
            y = x * x
            held = torch.cuda.memory_allocated()
            y.sum().backward()
            return held, x.grad.is_cuda, torch.cuda.memory_stats()["allocation.all.allocated"]

    save, nothing = torch.autograd.graph.save_on_cpu, contextlib.nullcontext
    assert kept(save, nothing) == kept(nothing, save)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: packed.append(tensor) or tensor, lambda same: same):
        with simgpu.simulated_gpu("A100-80GB"):
            pass
        torch.ones(3, requires_grad=True).exp()
    assert len(packed) == 1
    torch.ones(3, requires_grad=True).exp()
    assert len(packed) == 1


@pytest.mark.parametrize("around", ENTRIES.values(), ids=ENTRIES)
def test_entry_in_any_state(around):
    gpu = simgpu.simulated_gpu("A100-80GB")
    try:
        with around():
            gpu.__enter__()
            assert torch.ones(1, device="cuda").is_cuda
            assert torch.ones(1).device.type == "cpu"
        x = torch.ones(1, device="cuda", requires_grad=True)
        (x * 2).sum().backward()
        assert x.grad.is_cuda
    finally:
        gpu.__exit__(None, None, None)
    assert _get_current_function_mode_stack() == [] and session._sessions == []
    assert torch.utils._device.CURRENT_DEVICE is None
