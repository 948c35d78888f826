"""Every public name of torch.cuda and torch.accelerator answers as on the oracle, or is refused by name."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

import simgpu
from simgpu.torch_patches import cuda_c_api
from tests import versions
from tools.oracle import face

STORED = json.loads(face.STORED.read_text())


@pytest.fixture(scope="module")
def answers():
    with simgpu.simulated_gpu(face.GPU):
        return face.answers()


THIS_TORCH = torch.__version__.startswith(STORED["torch"])
GROWN = {"torch.cuda.memory_stats", "torch.cuda.memory_stats_as_nested_dict", "torch.backends.cudnn.set_flags"}
"""Names whose answer gets one more entry from time to time."""


REFUSED = {
    "torch.cuda.GreenContext",
    "torch.cuda.caching_allocator_disabled",
    "torch.cuda.current_solver_handle",
    "torch.cuda.jiterator",
    "torch.backends.cuda.cublaslt_workspace_size",
}
"""In addition to TunableOp, NCCL's own calls and GPUDirect Storage."""


OF_NVML = {f"torch.cuda.{name}" for name in ("memory_usage", "temperature", "power_draw", "clock_rate", "utilization")}
"""Names that NVML answers. The stored answers are those of stub libraries without NVML's functions, and not a GPU's."""


def _there(name):
    module, _, rest = name.rpartition(".")
    return hasattr(sys.modules.get(module, torch), rest)


@pytest.mark.parametrize("name", face.CALLS)
def test_a_public_name(name, answers):
    if not THIS_TORCH and (name in GROWN or name.startswith("build: ") or not _there(name)):
        pytest.skip("another torch has another answer")
    if name in OF_NVML:
        pytest.skip("tests/unit/simgpu/test_nvml.py holds what NVML answers")
    if answers[name].startswith("NotModelledError: "):
        assert "not modelled" in answers[name] or "models nothing else" in answers[name]
    else:
        assert answers[name] == STORED["answers"][name]


def test_what_is_refused():
    """The list only gets shorter."""
    with simgpu.simulated_gpu(face.GPU):
        refused = {name for name, text in face.answers().items() if text.startswith("NotModelledError")}
    parts = ("tunable", "nccl", "gds", "host_memory")
    rest = {name for name in refused if not any(part in name for part in parts)}
    assert rest == {name for name in REFUSED if THIS_TORCH or _there(name)}


@pytest.mark.skipif(not THIS_TORCH, reason="another torch has other names")
def test_no_public_name_is_left_out():
    assert face.public_names() - set(face.CALLS) == set()


@pytest.mark.parametrize("module", face.HOLDERS)
def test_no_helper_is_visible_in_torch(module):
    """What a simulated GPU adds to a module is among the names that only a CUDA build has there."""
    before = set(dir(sys.modules[module]))
    with simgpu.simulated_gpu(face.GPU):
        added = set(dir(sys.modules[module])) - before
    if not THIS_TORCH:
        pytest.skip("another torch has other names")
    assert added - set(STORED["names"][module]) == set()
    assert set(dir(sys.modules[module])) == before


def used_by_pytorch():
    """The names of torch._C that PyTorch's Python uses and that only CUDA builds have."""
    used = re.compile(r"\b_C(?:\.| import .*?)(_(?:cuda|accelerator)_[a-zA-Z]\w*)")
    elsewhere = Path(torch.__file__).parent / "mtia" / "__init__.py"  # asks its own device, by the accelerator's hooks
    for path in {*Path(torch.__file__).parent.rglob("*.py")} - {elsewhere}:
        yield from used.findall(path.read_text(encoding="utf-8", errors="ignore"))


def test_every_binding_that_pytorch_uses_answers_or_is_refused():
    classes = {"_cuda_CUDAAllocator", "_cuda_CUDAAllocator_AllocatorState"}
    with simgpu.simulated_gpu(face.GPU):
        machine = simgpu.device.machine.current()
        here = cuda_c_api.functions(machine).keys()
        assert {name for name in used_by_pytorch() if name not in here} <= classes


def test_counters_before_the_first_use():
    with simgpu.simulated_gpu("A100-80GB"):
        assert torch.cuda.memory_stats() == {} and not torch.cuda.is_initialized()
        torch.cuda.init()
        assert torch.cuda.is_initialized() and torch.cuda.memory_stats()["active.all.current"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": "bogus"}, "expected context to be 'state', 'alloc', 'all', or None"),
        ({"enabled": "bogus"}, "expected state to be 'state', 'all', or None"),
        ({"stacks": "bogus"}, "expected stacks to be 'python', or 'all'"),
        ({"skip_actions": ["bogus"]}, "Unknown TraceEntry action: bogus"),
    ],
)
def test_histories_are_checked(arguments, message):
    with simgpu.simulated_gpu("A100-80GB"), pytest.raises(RuntimeError, match=re.escape(message)):
        torch.cuda.memory._record_memory_history(**arguments)


def test_histories_follow_their_arguments():
    with simgpu.simulated_gpu("A100-80GB"):
        torch.cuda.memory._record_memory_history(context="state", skip_actions=["segment_alloc"])
        torch.cuda.memory._set_memory_metadata("mine")
        assert torch._C._cuda_isHistoryEnabled()
        x = torch.ones(1000, device="cuda")
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        assert [(event["action"], event["user_metadata"], "frames" in event) for event in events] == [
            ("alloc", "mine", False)
        ]
        if versions.TORCH >= (2, 12):  # whose own function it is
            assert torch.cuda.memory._allocation_traceback(x.data_ptr())[0]["filename"] == __file__
        with pytest.raises(TypeError, match="incompatible function arguments"):
            torch.cuda.memory._record_memory_history(max_entries=-1)


def test_observers_are_told_of_an_out_of_memory():
    """The figures are the oracle's, but for the device's free memory, which depends on the context."""
    seen = []
    with simgpu.simulated_gpu("H100"):
        torch._C._cuda_attach_out_of_memory_observer(lambda *arguments: seen.append(arguments))
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**40, dtype=torch.uint8, device="cuda")
    assert [arguments[:3] for arguments in seen] == [(0, 2**40, 85017755648)]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_what_makes_the_host_wait_is_told():
    """As on the oracle: copies that wait and values that are read, and not what waits by its name."""
    with simgpu.simulated_gpu("H100"):
        x, pinned = torch.ones(3, device="cuda"), torch.ones(3).pin_memory()
        torch.cuda.set_sync_debug_mode("error")
        for call in (x.cpu, x.sum().item, torch.ones(3).cuda, torch.cuda.current_stream().synchronize):
            with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
                call()
        torch.cuda.synchronize()
        pinned.to("cuda", non_blocking=True)
        torch.cuda.set_sync_debug_mode("warn")
        with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
            x.cpu()


def test_streams_of_the_pool():
    """The ids are the oracle's: 32 streams of each priority, in turn."""
    with simgpu.simulated_gpu("A100-80GB"):
        ids = [torch.cuda.Stream().stream_id for _ in range(33)]
        assert (ids[:3], ids[31:]) == ([3, 35, 67], [995, 3])
        assert [torch.cuda.Stream(priority=level).stream_id for level in (-1, -1, -3, -9, 5)] == [5, 37, 9, 41, 35]
        assert torch.cuda.Stream.priority_range() == (0, -3)
    with simgpu.simulated_gpu("A100-80GB"):
        assert torch.cuda.Stream().stream_id == 3
