"""The dtypes that a plan can name, and the GPUs that compute in 8-bit floats."""

import torch

from simgpu.gpus.specs import SPECS, Spec

DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}
FLOAT8 = "fp8"
KV_DTYPES = {FLOAT8: torch.float8_e4m3fn}
"""Further dtypes of a KV cache."""

FLOAT8_CAPABILITY = (8, 9)
"""The first compute capability with matmuls of 8-bit floats (ScaledBlas.cpp, `_scaled_mm_out_cuda`)."""


def check_float8(gpu: Spec) -> None:
    """Raises ValueError if a GPU has no matmuls of 8-bit floats."""
    if gpu.compute_capability < FLOAT8_CAPABILITY:
        have = ", ".join(name for name, one in SPECS.items() if one.compute_capability >= FLOAT8_CAPABILITY)
        major, minor = gpu.compute_capability
        raise ValueError(
            f"matmuls in fp8 need compute capability 8.9 or more, and {gpu.key} has {major}.{minor}; "
            f"these have it: {have}"
        )
