"""The dtypes that a plan can name, and the compute capability that 8-bit floats and FlashAttention need."""

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

FLASH_CAPABILITY = (8, 0)
"""The first compute capability with FlashAttention (sdp_utils.cpp, `check_flash_attention_hardware_support`)."""


def check_capability(gpu: Spec, least: tuple[int, int], what: str) -> None:
    """Raises ValueError if a GPU lacks the compute capability that `what` needs."""
    if gpu.compute_capability < least:
        have = ", ".join(name for name, one in SPECS.items() if one.compute_capability >= least)
        (major, minor), (first, second) = gpu.compute_capability, least
        raise ValueError(
            f"{what} needs compute capability {first}.{second} or more, and {gpu.key} has {major}.{minor}; "
            f"these have it: {have}"
        )
