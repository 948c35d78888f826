"""Describes a GPU to the stub libraries: the `MOCK_*` variables, made from its specification."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.gpus import specs


def environment(gpu: str) -> dict[str, str]:
    """The `MOCK_*` variables that make the stub libraries answer as `gpu` ("A100-80GB", "H100", ...).

    Raises ValueError, listing the known names, for a GPU that `simgpu.gpus.specs` does not have.
    """
    spec = specs.spec(gpu)
    major, minor = spec.compute_capability
    return {
        "MOCK_KEY": spec.key,
        "MOCK_NAME": spec.name,
        "MOCK_CC": str(10 * major + minor),
        "MOCK_SM": str(spec.multiprocessors),
        "MOCK_THR": str(spec.max_threads_per_multiprocessor),
        "MOCK_TOTAL": str(spec.total_memory),
        "MOCK_CTX": str(spec.context),
        "MOCK_L2": str(spec.l2_cache),
        "MOCK_SMEM_OPTIN": str(spec.capability.shared_memory_per_block),
        "MOCK_SMEM_SM": str(spec.capability.shared_memory),
    }


def kernels_of(gpu: str, architectures: Sequence[int]) -> int:
    """The architecture whose kernels a GPU runs: 86 for an RTX 4090 (8.9) on a build that has sm_75, sm_80, sm_86.

    It is the highest one of `architectures` that is not above the GPU's and has the same major version. CUB chooses
    its block sizes by it (`cudaFuncAttributes.ptxVersion`). Without one, the GPU's own.
    """
    major, minor = specs.spec(gpu).compute_capability
    own = 10 * major + minor
    return max((one for one in architectures if one // 10 == major and one <= own), default=own)
