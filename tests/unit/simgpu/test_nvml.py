"""pynvml on a simulated GPU: what programs that look for a GPU, or log its use, ask NVML."""

import os

import pynvml
import pytest
import torch

import simgpu
from simgpu.errors import NotModelledError


def test_what_the_device_is():
    with simgpu.simulated_gpu("T4") as gpu:
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert (pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetIndex(device)) == (1, 0)
        assert pynvml.nvmlDeviceGetName(device) == torch.cuda.get_device_name() == "Tesla T4"
        assert pynvml.nvmlDeviceGetCudaComputeCapability(device) == torch.cuda.get_device_capability()
        assert pynvml.nvmlSystemGetCudaDriverVersion() == int(float(torch.version.cuda or 0) * 1000)
        assert pynvml.nvmlDeviceGetUUID(device).startswith("GPU-")
        rates = pynvml.nvmlDeviceGetUtilizationRates(device)
        assert (rates.gpu, rates.memory, torch.cuda.utilization()) == (0, 0, 0)
        with pytest.raises(pynvml.NVMLError, match="Invalid Argument"):
            pynvml.nvmlDeviceGetHandleByIndex(1)
        total = pynvml.nvmlDeviceGetMemoryInfo(device).total
        assert total == pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2).total == gpu.total_memory


def test_the_process_and_its_memory():
    with simgpu.simulated_gpu("T4"):
        kept = torch.empty(2**28, device="cuda")
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
        assert process.pid == os.getpid()
        assert process.usedGpuMemory == pynvml.nvmlDeviceGetMemoryInfo(device).used > kept.nbytes
        assert str(os.getpid()) in torch.cuda.list_gpu_processes()


@pytest.mark.parametrize("ask", [torch.cuda.temperature, torch.cuda.power_draw, torch.cuda.clock_rate])
def test_what_only_a_card_knows_is_an_error_that_programs_expect(ask):
    """NVML says "not supported" of some cards, and programs that log these figures catch its errors."""
    with simgpu.simulated_gpu("T4"):
        for kind in (pynvml.NVMLError, pynvml.NVMLError_NotSupported, NotModelledError):
            with pytest.raises(kind, match=r"pynvml\.nvmlDeviceGet\w+ is not modelled"):
                ask()


def test_the_gpus_of_other_ranks():
    with simgpu.simulated_gpu("T4"), simgpu.one_rank(1, of=4):
        assert pynvml.nvmlDeviceGetCount() == torch.cuda.device_count() == 4
        assert pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(1)).used >= 0
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
