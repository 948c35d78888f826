"""Which GPU the stub libraries pretend to be.

All of it comes from `simgpu.hardware.gpus`, so that both sides of a comparison speak of the same GPU.
"""

from __future__ import annotations

from simgpu.hardware import gpus


def environment(gpu: str) -> dict[str, str]:
    """The `MOCK_*` variables that make the stub libraries answer as `gpu` ("A100-80GB", "H100", ...).

    Raises ValueError, listing the known names, for a GPU that `simgpu.hardware.gpus` does not have.
    """
    spec = gpus.spec(gpu)
    major, minor = spec.compute_capability
    return {
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
