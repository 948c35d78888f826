"""Which GPU the stub libraries pretend to be.

Name, memory, context and multiprocessors come from `simgpu.hardware.gpus`, so that both sides of a
comparison speak of the same GPU; shared memory, which only the oracle's host code asks for, is from the CUDA
programming guide's table of technical specifications per compute capability.
"""

from __future__ import annotations

from simgpu.hardware import gpus

KiB = 2**10

# compute capability -> (most shared memory of a block, shared memory of a multiprocessor), KiB
SHARED_MEMORY = {
    (7, 0): (96, 96),
    (7, 5): (64, 64),
    (8, 0): (163, 164),
    (8, 6): (99, 100),
    (8, 9): (99, 100),
    (9, 0): (227, 228),
    (10, 0): (227, 228),
}


def environment(gpu: str) -> dict[str, str]:
    """The `MOCK_*` variables that make the stub libraries answer as `gpu` ("A100-80GB", "H100", ...).

    Raises ValueError, listing the known names, for a GPU that `simgpu.hardware.gpus` does not have.
    """
    spec = gpus.spec(gpu)
    per_block, per_sm = SHARED_MEMORY[spec.compute_capability]
    major, minor = spec.compute_capability
    return {
        "MOCK_NAME": spec.name,
        "MOCK_CC": str(10 * major + minor),
        "MOCK_SM": str(spec.multiprocessors),
        "MOCK_THR": str(spec.max_threads_per_multiprocessor),
        "MOCK_TOTAL": str(spec.total_memory),
        "MOCK_CTX": str(spec.context),
        "MOCK_L2": str(spec.l2_cache),
        "MOCK_SMEM_OPTIN": str(per_block * KiB),
        "MOCK_SMEM_SM": str(per_sm * KiB),
    }
