"""When PyTorch initialises CUDA, and when it reads environment variables that a program sets after `import torch`.

Right values: PyTorch's CUDA host code under stub libraries (torch 2.13.0, H100), one process for each call.
"""

import importlib
import os

import pytest
import torch

import simgpu
from simgpu.errors import NotModelledError

# What each call does: it initialises CUDA, which reads the allocator's settings; it reads them alone; or neither.
INITIALISES = """
torch.cuda.init()
torch.cuda.set_device(0)
torch.cuda.get_device_properties(0)
torch.cuda.get_device_capability()
torch.cuda.get_device_name()
torch.cuda.is_bf16_supported()
torch.cuda.is_tf32_supported()
torch.cuda.mem_get_info()
torch.cuda.synchronize()
torch.cuda.current_stream()
torch.cuda.default_stream()
torch.cuda.current_device()
torch.cuda.cudart()
torch.cuda.ipc_collect()
torch.cuda.can_device_access_peer(0, 0)
torch.cuda.reset_peak_memory_stats()
torch.cuda.reset_accumulated_memory_stats()
torch.cuda.set_per_process_memory_fraction(0.9)
torch.cuda.get_rng_state()
torch.cuda.memory_summary()
torch.cuda.device(0).__enter__()
torch.cuda.stream(torch.cuda.Stream()).__enter__()
torch.cuda.Event().record()
torch.cuda.MemPool()
torch.cuda.get_sync_debug_mode()
torch.backends.cudnn.version()
torch.empty(0, device='cuda')
torch.accelerator.set_device_index(0)
torch.accelerator.current_device_index()
torch.accelerator.current_stream()
torch.accelerator.synchronize()
torch.accelerator.get_memory_info()
"""
READS = """
torch.cuda.memory._record_memory_history()
torch.cuda.memory._record_memory_history(enabled=None)
torch.cuda.memory._snapshot()
torch._C._accelerator_getAllocatorSettings()
torch._C._accelerator_setAllocatorSettings('')
torch._C._cuda_attach_out_of_memory_observer(lambda *_: None)
torch.empty(10, pin_memory=True)
torch.ones(3).pin_memory()
list(torch.utils.data.DataLoader([torch.ones(3)], pin_memory=True))
"""
NEITHER = """
torch.cuda.is_available()
torch.cuda.device_count()
torch.cuda.is_initialized()
torch.cuda.memory_allocated()
torch.cuda.max_memory_allocated()
torch.cuda.memory_reserved()
torch.cuda.memory_stats()
torch.cuda.empty_cache()
torch.cuda.Stream()
torch.cuda.Event()
torch.cuda.CUDAGraph()
torch.cuda.graph_pool_handle()
torch.cuda.is_current_stream_capturing()
torch.cuda.manual_seed_all(0)
torch.cuda.seed()
torch.cuda.get_arch_list()
torch.cuda.get_allocator_backend()
torch.cuda.nccl.version()
torch.cuda.nvtx.range_push('a')
torch.cuda.set_stream(torch.cuda.Stream())
torch.manual_seed(0)
torch.Generator('cuda').manual_seed(0)
torch.Generator('cuda').get_state()
torch.device('cuda')
torch.autocast('cuda').__enter__()
torch.amp.GradScaler('cuda')
torch.backends.cuda.preferred_linalg_library('cusolver')
torch.nn.Linear(3, 3)
torch.ones(3).is_pinned()
torch.accelerator.current_accelerator()
torch.accelerator.device_count()
torch.accelerator.memory_allocated()
torch._C._cuda_hasPrimaryContext(0)
torch._C._cuda_clearCublasWorkspaces()
torch._C._accelerator_isAllocatorInitialized()
"""
CASES = [
    (call, *what)
    for calls, what in ((INITIALISES, (True, True)), (READS, (False, True)), (NEITHER, (False, False)))
    for call in calls.split("\n")[1:-1]
]
EXPANDABLE, NOT_EXPANDABLE = 83886080, 71303168  # reserved for five tensors of 12 MiB


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "initialises", "reads"), CASES)
def test_a_call(call, initialises, reads, monkeypatch):
    """Whether CUDA is initialised after it, and whether settings that are set after it still count."""
    enabled = torch.is_autocast_enabled("cuda")
    with simgpu.simulated_gpu("H100"):
        kept = eval(call)
        assert torch.cuda.is_initialized() is initialises
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        with torch.cuda.stream(torch.cuda.default_stream()):
            tensors = [torch.empty(3 * 2**20 + i, device="cuda") for i in range(5)]
        assert torch.cuda.memory_reserved() == (NOT_EXPANDABLE if reads else EXPANDABLE)
        assert torch.cuda.is_initialized()
        torch.set_autocast_enabled("cuda", enabled)
        del tensors, kept


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_settings_of_a_script(variable, tmp_path, monkeypatch):
    """A script that sets them before `import torch`, which `simgpu run` has imported."""
    monkeypatch.delenv(variable, raising=False)
    script = tmp_path / "script.py"
    script.write_text(
        f"import os\nos.environ[{variable!r}] = 'expandable_segments:True'\nimport torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "xs = [torch.empty(3 * 2**20 + i, device='cuda') for i in range(5)]\n"
    )
    try:
        report = simgpu.run(script, gpu="H100")
    finally:
        os.environ.pop(variable, None)
    assert report.reserved == EXPANDABLE


@pytest.mark.parametrize("call", ["torch.cuda.init()", "torch.empty(3, device='cuda')", *READS.split("\n")[1:2]])
def test_bad_settings_are_refused_when_they_are_read(call, monkeypatch):
    with simgpu.simulated_gpu("H100"):
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", "foo:1")
        assert torch.cuda.is_available() and torch.cuda.memory_stats() == {}
        for _ in range(2):
            with pytest.raises(ValueError, match="Unrecognized key 'foo' in CUDA allocator config"):
                eval(call)


def test_cublas_reads_its_workspace_once(monkeypatch):
    """With the first product: what is set later does not count, on another stream either."""
    with simgpu.simulated_gpu("H100"):
        a = torch.ones(512, 512, device="cuda")
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        b = a @ a
        assert torch.cuda.memory_allocated() == 2228224
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        with torch.cuda.stream(torch.cuda.Stream()):
            b = a @ a
        assert torch.cuda.memory_allocated() == 2359296
        del b


HIDDEN = {
    "torch.cuda.is_available()": False,
    "torch.cuda.device_count()": 0,
    "torch.accelerator.device_count()": 0,
    "torch.accelerator.is_available()": False,
    "torch.cuda.memory_allocated()": 0,
    "torch.backends.cudnn.version()": 92000,
    "torch.cuda.is_bf16_supported()": False,
    "torch.cuda.manual_seed_all(0)": None,
}
REFUSED = (
    "torch.cuda.init()",
    "torch.ones(3, device='cuda')",
    "torch.empty(0, device='cuda')",
    "torch.ones(3).cuda()",
    "torch.ones(3).to(0)",
    "torch.cuda.current_device()",
    "torch.cuda.get_device_name()",
    "torch.cuda.synchronize()",
    "torch.nn.Linear(3, 3).to('cuda:0')",
)


@pytest.mark.parametrize("value", ["", "-1", "none"])
def test_a_program_hides_the_gpu(value, monkeypatch):
    """CUDA_VISIBLE_DEVICES, set by the program before PyTorch asks for a GPU."""
    for call in (*HIDDEN, *REFUSED):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        with simgpu.simulated_gpu("H100"):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
            if call in HIDDEN:
                assert eval(call) == HIDDEN[call], call
            else:
                with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
                    eval(call)


def test_where_cuda_is_installed_does_not_make_it_look_for_a_gpu(monkeypatch):
    """torch.utils.cpp_extension asks for a GPU where it finds CUDA."""
    importlib.import_module("torch.utils.cpp_extension")
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with simgpu.simulated_gpu("H100"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert torch.utils.cpp_extension.CUDA_HOME == "/opt/cuda" and not torch.cuda.is_available()


def test_what_hides_the_machines_own_gpus_does_not_hide_the_simulated_one(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with simgpu.simulated_gpu("H100"):
        assert torch.cuda.is_available() and torch.ones(1, device="cuda").is_cuda


def test_a_visible_gpu_is_there(monkeypatch):
    for value in ("0", "3", "GPU-8932f937"):
        with simgpu.simulated_gpu("H100"):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
            assert torch.cuda.device_count() == 1


def test_no_caching_is_refused_when_it_is_read(monkeypatch):
    with simgpu.simulated_gpu("H100"):
        monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
        with pytest.raises(NotModelledError, match="PYTORCH_NO_CUDA_MEMORY_CACHING"):
            torch.ones(1, device="cuda")
