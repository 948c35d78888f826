"""A simulated GPU comes and goes, and leaves torch as it was."""

import copy
import pickle
import runpy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import labkit
import simgpu
from simgpu import session
from simgpu.device import machine
from simgpu.errors import NotModelledError
from tests.unit.simgpu.states import assert_same, state
from tests.versions import TORCH


def train():
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(16, 32, device="cuda")).sum().backward()
    optimizer.step()


@pytest.fixture(autouse=True, scope="module")
def warmed_up():
    """Lets PyTorch import what it imports lazily, which is no change of ours."""
    with labkit.simulated_gpu():
        train()


def test_torch_is_as_before_after_training():
    before = state()
    with labkit.simulated_gpu("H100"):
        train()
    assert_same(before, state())
    assert torch.overrides._get_current_function_mode_stack() == []
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert machine.current() is None


def test_torch_is_as_before_after_an_exception():
    before = state()
    with pytest.raises(ZeroDivisionError), labkit.simulated_gpu():
        torch.ones(4, device="cuda")
        raise ZeroDivisionError
    assert_same(before, state())


def test_a_default_device_set_inside_ends_with_the_gpu():
    for default in (None, "cpu"):
        torch.set_default_device(default)
        with labkit.simulated_gpu(), labkit.simulated_gpu():
            torch.set_default_device("cuda")
        assert torch.get_default_device() == torch.device("cpu") == torch.zeros(1).device
    torch.set_default_device(None)
    assert torch.overrides._get_current_function_mode_stack() == []
    with labkit.simulated_gpu():
        torch.set_default_device("cuda")
        with labkit.simulated_gpu():
            assert torch.zeros(1).is_cuda
        assert torch.zeros(1).is_cuda


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_default_device_below_another_ends_with_the_gpu(device):
    """`with torch.device(...)` is still on then, which is where torch.set_default_device fails."""
    before = state()
    gpu = labkit.simulated_gpu()
    gpu.__enter__()
    torch.set_default_device(device)
    with torch.device("meta"):
        gpu.__exit__(None, None, None)
        assert torch.zeros(1).is_meta
    assert torch.zeros(1).device.type == "cpu"
    assert_same(before, state())
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize("ended", [False, True], ids=["on", "ended"])
@pytest.mark.parametrize("device", ["cuda", torch.device("cuda", 0), 0], ids=str)
@pytest.mark.parametrize("default", [None, "cpu"])
def test_a_default_device_that_a_checkpoint_has_seen_ends_with_the_gpu(default, device, ended):
    """Up to torch 2.13 PyTorch enters its mode once more for the recomputation, and torch.set_default_device does not
    end that one. From 2.14 on it enters another mode, so the default that the program has set last holds."""
    torch.set_default_device(default)
    before = torch.utils._device.CURRENT_DEVICE
    with labkit.simulated_gpu():
        torch.set_default_device(device)
        layer, x = torch.nn.Linear(3, 3), torch.zeros(2, 3, requires_grad=True)
        for _ in range(2):
            checkpoint(layer, x, use_reentrant=False).sum().backward()
        if ended:
            torch.set_default_device(None)
    after = None if ended and TORCH >= (2, 14) else before
    assert after == torch.utils._device.CURRENT_DEVICE and torch.zeros(1).device.type == "cpu"
    torch.set_default_device(None)
    assert torch.overrides._get_current_function_mode_stack() == []
    assert torch.utils._device.CURRENT_DEVICE is None


def test_a_users_file_may_be_called_simulator(tmp_path):
    """The frames of an allocation leave out the simulated GPU's own files, and nobody else's."""
    path = tmp_path / "simulator.py"
    path.write_text("import torch\n\n\ndef make():\n    return torch.ones(4, device='cuda')\n")
    with labkit.simulated_gpu():
        torch.cuda.memory._record_memory_history()
        made = runpy.run_path(path)["make"]()
        (event,) = [event for event in torch.cuda.memory._snapshot()["device_traces"][0] if event["action"] == "alloc"]
    del made
    inner = event["frames"][0]
    assert (inner["filename"], inner["line"], inner["name"]) == (str(path), 5, "make")


def test_torch_is_as_before_when_starting_fails(monkeypatch):
    def fail(*_):
        raise ValueError("foo")

    before = state()
    monkeypatch.setattr(session.nvml, "patch", fail)
    with pytest.raises(ValueError, match="foo"), labkit.simulated_gpu():
        pass
    assert_same(before, state())
    assert machine.current() is None


def test_no_caching_is_refused_by_name(monkeypatch):
    before = state()
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    with pytest.raises(NotModelledError, match="NO_CUDA_MEMORY_CACHING"), labkit.simulated_gpu():
        torch.ones(1, device="cuda")
    assert_same(before, state())


def test_cuda_is_absent_again_outside():
    was_available = torch.cuda.is_available()
    with labkit.simulated_gpu():
        assert torch.cuda.is_available()
    assert torch.cuda.is_available() == was_available


def test_each_gpu_starts_empty():
    for _ in range(2):
        with labkit.simulated_gpu():
            assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved() == 0
            x = torch.ones(1, device="cuda")
            assert torch.cuda.memory_allocated() == 512
            assert torch.cuda.memory_reserved() == 2 * 2**20
    assert x.device.type == "meta"  # what outlives its GPU is PyTorch's own meta tensor


def test_saved_tensor_hooks_see_the_inner_of_two_gpus():
    seen = []

    def pack(tensor):
        seen.append(tensor.device.type)
        return tensor

    with labkit.simulated_gpu("A100-80GB"), labkit.simulated_gpu("V100-16GB"):
        layer, x = torch.nn.Linear(8, 8).cuda(), torch.ones(4, 8, device="cuda")
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(x).tanh().sum().backward()
    assert set(seen) == {"cuda"}


def test_nested_gpus_do_not_share_memory():
    with labkit.simulated_gpu("A100-80GB") as outer:
        x = torch.ones(1024, device="cuda")
        with labkit.simulated_gpu("H100") as inner:
            assert torch.cuda.memory_allocated() == 0
            assert labkit.gpu.current().name == inner.name
            assert torch.cuda.get_device_capability() == (9, 0)
            with pytest.raises(RuntimeError, match=r"A100-80GB.*H100"):
                x + 1
        assert labkit.gpu.current().name == outer.name
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.memory_allocated() == 4096
        del x
        assert torch.cuda.memory_allocated() == 0


def test_a_freed_inner_gpu_does_not_touch_the_outer_one():
    with labkit.simulated_gpu():
        with labkit.simulated_gpu():
            y = torch.ones(1024, device="cuda")
        del y
        assert torch.cuda.memory_allocated() == 0


def test_unknown_gpu_names_the_known_ones():
    with pytest.raises(ValueError, match="A100-80GB"), labkit.simulated_gpu("A1000"):
        pass


def test_a_memory_of_another_size():
    with labkit.simulated_gpu("H200", total_memory=2**41) as gpu:
        assert (gpu.name, gpu.total_memory) == ("H200", 2**41)
        assert torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1] == 2**41
        torch.empty(2**40, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match=r"GPU 0 has a total capacity of 2048\.00 GiB"):
            torch.empty(2**41, dtype=torch.uint8, device="cuda")
    with labkit.simulated_gpu("H200") as gpu:
        assert gpu.total_memory == torch.cuda.mem_get_info()[1] < 2**40


@pytest.mark.parametrize(("size", "error"), [(2**20, "does not hold the CUDA context"), (2**40 / 3, "whole number")])
def test_a_memory_too_small_or_no_size_is_refused(size, error):
    with pytest.raises(ValueError, match=error), labkit.simulated_gpu("H200", total_memory=size):
        pass
    assert not torch.cuda.is_available()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda gpu: pickle.loads(pickle.dumps(gpu))])
def test_a_copy_is_another_gpu(copied):
    gpu = simgpu.simulated_gpu("H200", 2**40)
    with gpu:
        other = copied(gpu)
        with other as found:
            assert (found.name, found.total_memory) == ("H200", 2**40)
        del other
        assert torch.ones(1, device="cuda").is_cuda
    assert machine.current() is None


def test_leaving_what_is_not_on_is_refused():
    gpu = simgpu.simulated_gpu("A100-80GB")
    with gpu, gpu:
        assert torch.cuda.is_available()
    with pytest.raises(RuntimeError, match="is not on: it was left already"):
        gpu.__exit__(None, None, None)


def test_what_runs_later_is_not_decorated():
    @simgpu.simulated_gpu("A100-80GB")
    def function():
        return torch.cuda.get_device_name()

    async def coroutine():
        pass

    def generator():
        yield

    assert function() == function() == "NVIDIA A100-SXM4-80GB"
    for later in (coroutine, generator):
        with pytest.raises(TypeError, match=f"{later.__name__} runs after it was called"):
            simgpu.simulated_gpu("A100-80GB")(later)


def test_use_gpu_says_what_it_is_and_starts_anew(capsys, monkeypatch):
    monkeypatch.setenv("LABKIT_GPU", "V100-16GB")
    first = labkit.use_gpu("A100-80GB")
    try:
        assert first.simulated and first.name == "V100-16GB"
        assert first.total_memory == torch.cuda.get_device_properties(0).total_memory
        x = torch.ones(1, device="cuda")
        labkit.use_gpu("A100-80GB")
        assert torch.cuda.memory_allocated() == 0
        assert "simulated V100-16GB" in capsys.readouterr().out
        del x
    finally:
        labkit.gpu.leave()


def test_use_gpu_inside_a_simulated_gpu_says_what_is_so(capsys):
    with labkit.simulated_gpu("H100"):
        gpu = labkit.use_gpu("T4")
        assert (gpu.simulated, gpu.name) == (True, "H100") and torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3"
        assert "Running on the simulated H100 of a `with` around this" in capsys.readouterr().out
        labkit.gpu.leave()  # nothing was entered
        assert torch.ones(1, device="cuda").is_cuda
    assert machine.current() is None


@pytest.mark.usefixtures("forked_programs")
def test_on_a_real_gpu_the_simulator_is_not_imported():
    code = (
        "import sys, torch\n"
        "torch.cuda.is_available = lambda: True\n"
        "torch.cuda.get_device_name = lambda *a: 'a GPU'\n"
        "torch.cuda.get_device_properties = lambda *a: type('P', (), {'total_memory': 2**34})\n"
        "import labkit\n"
        "assert not labkit.use_gpu().simulated\n"
        "assert not [m for m in sys.modules if m.startswith('simgpu')]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_python_functions_are_seen_through():
    """F.multi_head_attention_forward is Python; dropout inside it must take CUDA's branch, with its 1 B mask."""
    original = torch.overrides.has_torch_function
    with labkit.simulated_gpu():
        x = torch.randn(4, 8, 32, device="cuda")
        weights = [torch.randn(n, 32, device="cuda") for n in (96, 32)]
        torch.cuda.memory._record_memory_history()
        F.multi_head_attention_forward(
            x, x, x, 32, 2, weights[0], None, None, None, False, 0.5, weights[1], None, need_weights=True
        )
        sizes = [e["size"] for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
        assert 8 * 2 * 4 * 4 in sizes
        assert F.has_torch_function is not original
