"""Refuses by name the functions that the simulated GPU does not model."""

from simgpu.errors import OTHER_ENGINE, NotModelledError

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


def functions() -> dict:
    """Returns the refused functions of torch._C, by name."""
    return {name: refusal(f"torch._C.{name}", reason) for name, reason in REASONS.items()}
