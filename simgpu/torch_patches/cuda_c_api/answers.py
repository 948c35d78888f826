"""Functions of torch._C whose answer is one expression, or a refusal."""

from collections.abc import Callable

import torch

from simgpu.device.machine import Machine
from simgpu.errors import OTHER_ENGINE, NotModelledError
from simgpu.storage import storage_map
from simgpu.torch_patches import build

# Refuses by name the functions that the simulated GPU does not model.

_POOLS = "The simulated GPU has private pools; checkpoints of them (torch.compile's CUDA graph trees) are not modelled."
_HOST = "Pinned memory of the host is not counted by the simulated GPU."
_PLUGGABLE = "The simulated GPU models PyTorch's own allocator and no other."
_NCCL = "The simulated GPU is one GPU; torch.distributed is one rank of many on it (simgpu.one_rank)."
_TUNING = "The simulated GPU runs no kernels that could be tuned."
_FILES = "Files cannot be read to the simulated GPU's memory, which has no values: read them to the CPU."
_CODE = f"The simulated GPU runs no kernels that are compiled from source. {OTHER_ENGINE}"

REASONS = {
    "_cuda_CUDAAllocator_AllocatorState": _POOLS,  # torch._dynamo.reset() imports it without calling it
    "_cuda_checkPoolLiveAllocations": _POOLS,
    "_cuda_getCheckpointState": _POOLS,
    "_cuda_setCheckpointPoolState": _POOLS,
    "_cuda_hostMemoryStats": _HOST,
    "_cuda_resetAccumulatedHostMemoryStats": _HOST,
    "_cuda_resetPeakHostMemoryStats": _HOST,
    "_cuda_cudaHostAllocator": _HOST,
    "_cuda_customAllocator": _PLUGGABLE,
    "_cuda_getCurrentSolverHandle": "cuSOLVER is not modelled by the simulated GPU.",
    "_cuda_get_conv_benchmark_empty_cache": "cuDNN's benchmark is not modelled by the simulated GPU.",
    "_cuda_getHipblasltVersion": "The simulated GPU is none of AMD's.",
    "_cuda_getCublasLtWorkspaceSize": "The workspace of cuBLASLt alone is not modelled by the simulated GPU.",
    "_cuda_setCublasWorkspaceSize": "Set CUBLAS_WORKSPACE_CONFIG before the simulated GPU is entered.",
    "_cuda_setCublasLtWorkspaceSize": "The workspace of cuBLASLt alone is not modelled by the simulated GPU.",
    "_cuda_resetCublasWorkspaceSize": "Set CUBLAS_WORKSPACE_CONFIG before the simulated GPU is entered.",
    "_cuda_resetCublasLtWorkspaceSize": "The workspace of cuBLASLt alone is not modelled by the simulated GPU.",
    "_cuda_jiterator_compile_and_launch_kernel": _CODE,
    **dict.fromkeys(
        (
            "_cuda_tunableop_get_filename",
            "_cuda_tunableop_get_max_tuning_duration",
            "_cuda_tunableop_get_max_tuning_iterations",
            "_cuda_tunableop_get_results",
            "_cuda_tunableop_get_rotating_buffer_size",
            "_cuda_tunableop_get_validators",
            "_cuda_tunableop_read_file",
            "_cuda_tunableop_set_filename",
            "_cuda_tunableop_set_max_tuning_duration",
            "_cuda_tunableop_set_max_tuning_iterations",
            "_cuda_tunableop_set_numerical_check_tolerances",
            "_cuda_tunableop_set_rotating_buffer_size",
        ),
        _TUNING,
    ),
    **dict.fromkeys(
        (
            "_nccl_unique_id",
            "_nccl_init_rank",
            "_nccl_all_reduce",
            "_nccl_reduce",
            "_nccl_broadcast",
            "_nccl_all_gather",
            "_nccl_reduce_scatter",
        ),
        _NCCL,
    ),
    **dict.fromkeys(
        (
            "_gds_register_buffer",
            "_gds_deregister_buffer",
            "_gds_register_handle",
            "_gds_deregister_handle",
            "_gds_load_storage",
            "_gds_save_storage",
        ),
        _FILES,
    ),
}
"""The alternative, or the reason, by the function's name."""


def refusal(name: str, reason: str):
    """Returns a function that raises NotModelledError with this name."""

    def refuse(*args, **kwargs):
        raise NotModelledError(f"{name} is not modelled. {reason}")

    return refuse


def refusals() -> dict:
    """Returns the refused functions of torch._C, by name."""
    return {name: refusal(f"torch._C.{name}", reason) for name, reason in REASONS.items()}


# Functions of torch._C whose answer is one expression, or that have nothing to do here.


def nothing() -> Callable:
    """Returns a new function that does nothing."""
    return lambda *args, **kwargs: None


def functions(machine: Machine) -> dict[str, Callable]:
    """Returns these functions by name, each of its own, because torch._dynamo registers one handler for a function."""
    settings, allocator = machine.library_settings, machine.allocator

    def emptied() -> None:
        storage_map.free_lost()
        allocator.empty_cache()

    found: dict[str, Callable] = {
        # The device. CUDA's kernel that waits has no length here, and no memory is shared with other processes.
        "_cuda_init": machine.initialize,
        "_cuda_isInBadFork": lambda: machine.allocator_lock.forked,
        "_cuda_getDeviceCount": lambda: machine.count,
        "_cuda_getDevice": lambda: machine.index,
        "_cuda_canDeviceAccessPeer": lambda device, peer: False,
        "_cuda_getArchFlags": lambda: " ".join(f"sm_{architecture}" for architecture in build.ARCHITECTURES),
        "_cuda_synchronize": machine.synchronize,
        "_cuda_sleep": nothing(),
        "_cuda_ipc_collect": nothing(),
        "_set_cached_tensors_enabled": nothing(),  # torch._dynamo.reset() calls it; graphs keep no tensors here
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_get_accelerator": lambda check=None: torch.device("cuda"),  # for torch.distributed
        # Memory. Pinned host memory is not cached.
        "_cuda_emptyCache": lambda: emptied(),
        "_accelerator_emptyCache": lambda: emptied(),
        "_accelerator_emptyHostCache": nothing(),
        "_host_emptyCache": nothing(),
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_raw_delete": machine.raw_delete,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_accelerator_isAllocatorInitialized": lambda: machine.initialized,
        # The allocator's history.
        "_cuda_isHistoryEnabled": lambda: allocator.recording,
        "_cuda_allocationTraceback": allocator.frames_of,
        "_cuda_setMemoryMetadata": lambda text: setattr(allocator.history, "metadata", text),
        "_cuda_getMemoryMetadata": lambda: allocator.history.metadata,
        # Streams and graphs.
        "_cuda_get_sync_debug_mode": lambda: machine.sync_debug_mode,
        "_graph_pool_handle": allocator.pools.new_id,
        # Libraries. The handle is a number that cannot be used in calls.
        "_nccl_version_suffix": lambda: b"",
        "_get_linalg_preferred_backend": lambda: settings.get("linalg", torch._C._LinalgBackend.Default),
        "_set_linalg_preferred_backend": lambda backend: settings.update(linalg=backend),
        "_cuda_clearCublasWorkspaces": machine.clear_blas_workspaces,
        "_cuda_getCurrentBlasHandle": lambda: id(machine),
        "_cuda_get_cudnn_benchmark_limit": lambda: settings.get("cudnn_benchmark_limit", 10),
        "_cuda_set_cudnn_benchmark_limit": lambda limit: settings.update(cudnn_benchmark_limit=limit),
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_tunableop_tuning_is_enabled": lambda: settings.get("tuning", True),
        "_cuda_tunableop_tuning_enable": lambda value=True: settings.update(tuning=bool(value)),
        "_cuda_record_untuned_is_enabled": lambda: False,
        "_is_flash_attention_available": lambda: True,
    }
    if machine.torch_version >= (2, 14):
        found |= {"_cuda_memoryMetadataSupported": lambda: True, "_cuda_annotateMemory": allocator.annotate}
    if hasattr(torch.cuda.memory, "_free_mutex"):  # torch 2.11 locks the allocator; no other thread frees in between
        found |= {"_cuda_lock_mutex": nothing(), "_cuda_unlock_mutex": nothing()}
    return found
