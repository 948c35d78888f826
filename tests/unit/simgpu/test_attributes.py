"""Attributes of torch that are others on the simulated GPU: storages that move, checkpoints, the profiler."""

import io
import pickle

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import labkit
from simgpu.errors import NoValueError


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("A100-80GB"):
        yield


@pytest.fixture
def checkpoint():
    file = io.BytesIO()
    torch.save(nn.Sequential(nn.Linear(300, 500), nn.BatchNorm1d(500)).state_dict(), file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    "place",
    ["cuda", "cuda:0", torch.device("cuda"), {"cpu": "cuda"}, lambda storage, location: storage.cuda()],
    ids=["cuda", "cuda:0", "device", "dict", "function"],
)
def test_a_checkpoint_is_loaded_to_the_gpu(checkpoint, place):
    loaded = torch.load(checkpoint, map_location=place)
    assert {tensor.device for tensor in loaded.values()} == {torch.device("cuda", 0)}
    assert loaded["0.weight"].shape == (500, 300) and loaded["1.num_batches_tracked"].item() == 0
    assert torch.cuda.memory_allocated() == 610816  # the oracle's: 600000 B, five times 2000 B, 8 B
    del loaded
    assert torch.cuda.memory_allocated() == 0


def test_both_copies_of_the_parameters_are_there_while_a_checkpoint_is_loaded(checkpoint):
    model = nn.Sequential(nn.Linear(300, 500), nn.BatchNorm1d(500)).cuda()
    model.load_state_dict(torch.load(checkpoint, map_location="cuda"))
    assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (610816, 1221632)  # the oracle's


def test_a_storage_on_the_gpu_stays_there_if_its_whole_name_is_said():
    storage = torch.ones(4, device="cuda").untyped_storage()
    assert storage.to(device="cuda:0") is storage and storage.device == torch.device("cuda", 0)
    copy = storage.cuda()  # as on CUDA: "cuda" is not "cuda:0"
    assert copy is not storage and torch.cuda.memory_allocated() == 1024
    assert "device=cuda:0) of size 16" in repr(copy)
    with pytest.raises(NoValueError, match="have none"):
        copy.tolist()


def test_a_storage_without_values_goes_back_to_the_gpu():
    storage = torch.ones(1000, device="cuda").cpu().untyped_storage()
    assert torch.cuda.memory_allocated() == 0
    assert storage.cuda().nbytes() == 4000
    assert torch.cuda.memory_allocated() == 0
    kept = storage.cuda()
    assert torch.cuda.memory_allocated() == 4096
    del kept


@pytest.mark.parametrize("save", [lambda tensor: torch.save(tensor, io.BytesIO()), pickle.dumps])
def test_there_is_nothing_to_save(save):
    for tensor in (torch.ones(300, device="cuda"), torch.ones(300, device="cuda").cpu()):
        with pytest.raises(NoValueError, match=r"torch.save and pickle write values, and the 1200 B of a simulated"):
            save(tensor)
    save(torch.ones(300))


@pytest.mark.parametrize(
    "profiler",
    [
        lambda: profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]),
        lambda: torch.autograd.profiler.profile(use_device="cuda"),
    ],
)
def test_the_host_is_profiled_without_kernels(profiler):
    with pytest.warns(UserWarning, match="torch.profiler records the host alone"), profiler() as profiled:
        torch.ones(3, device="cuda").add(1)
    events = profiled.key_averages()
    assert "aten::add" in {event.key for event in events}
    assert sum(event.device_time_total for event in events) == 0
    assert "aten::add" in events.table(sort_by="cuda_time_total", row_limit=10)


def test_a_profiler_with_a_schedule_is_told_once_and_traces_the_host(tmp_path, recwarn):
    steps = torch.profiler.schedule(wait=1, warmup=1, active=1)
    traces = []
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CUDA], schedule=steps, on_trace_ready=traces.append) as profiled:
            for _ in range(3):
                torch.ones(3, device="cuda").mul(2)
                profiled.step()
    assert len([one for one in recwarn if "records the host alone" in str(one.message)]) == 1
    traces[0].export_chrome_trace(str(tmp_path / "trace.json"))
    assert "aten::mul" in (tmp_path / "trace.json").read_text()


def test_the_host_is():
    with profile() as profiled:
        torch.ones(3, device="cuda").add(1)
    assert "aten::add" in {event.key for event in profiled.key_averages()}


def test_what_cudnn_accepts_is_told_without_cudnn(recwarn):
    assert torch.backends.cudnn.is_acceptable(torch.zeros(2, device="cuda"))
    assert not torch.backends.cudnn.is_acceptable(torch.zeros(2, dtype=torch.int64, device="cuda"))
    assert not torch.backends.cudnn.is_acceptable(torch.zeros(2))
    torch.nn.LSTM(8, 8).cuda()
    assert [str(one.message) for one in recwarn if "cuDNN/MIOpen" in str(one.message)] == []
