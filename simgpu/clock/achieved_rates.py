"""The rates that large matmuls, and copies within a GPU's memory, reach on a GPU, from public measurements.

Matmuls: the public table `database.md` of the repository zzc0721/torch-performance-test-data, commit 9d82827 (January
2026). It has `torch.mm` of square matrices of size 1,024 to 10,240, 30 times between two CUDA events, with the best
size; float32 with TF32 off. Owners of a card contribute the rows. The value here is the median of the rows of exactly
that card. Rows are excluded for laptops, for cards with other memory or fewer multiprocessors ("D", "Ti"), and for PCIe
cards if the simulated one is a module. (The V100 of 32 GB has the row of the one of 16 GB: the chip is the same.) Some
cards have a single row.

The rows show what datasheets do not. A GeForce reaches up to a sixth more than its datasheet in half precision, a T4 or
L4 little more than half, and in float32 GeForce cards reach two thirds. No time of a whole model influenced the choice.
"""

from collections.abc import Mapping

from simgpu.clock import rates
from simgpu.gpus.specs import Spec

_H100 = {"float32": 52.0, "tf32": 402.15, "float16": 759.09, "bfloat16": 790.59}
_V100 = {"float32": 14.06, "float16": 94.84, "bfloat16": 10.34}
MEASURED: Mapping[str, Mapping[str, float]] = {
    "T4": {"float32": 4.35, "float16": 41.93, "bfloat16": 2.27},
    "V100-16GB": _V100,
    "V100-32GB": _V100,
    "RTX 3090": {"float32": 24.79, "float16": 75.64, "bfloat16": 76.58},
    "RTX 4090": {"float32": 54.26, "tf32": 85.65, "float16": 166.87, "bfloat16": 165.26},
    "RTX 5090": {"float32": 68.36, "tf32": 122.19, "float16": 229.52, "bfloat16": 238.04},
    "RTX A6000": {"float32": 23.92, "float16": 120.49, "bfloat16": 123.34},
    "A100-40GB": {"float32": 18.11, "float16": 247.63, "bfloat16": 246.33},
    "A100-80GB": {"float32": 19.18, "float16": 258.74, "bfloat16": 264.53},
    "L4": {"float32": 15.38, "tf32": 31.88, "float16": 68.83, "bfloat16": 70.89},
    "L40S": {"float32": 46.88, "float16": 264.02, "bfloat16": 269.15},
    "H100": _H100,
    "H200": {"float32": 51.34, "float16": 759.4, "bfloat16": 790.29},
    "B200": {"float32": 66.24, "float16": 1627.64, "bfloat16": 1696.03},
}
"""TFLOP/s by the key of `Spec` and the type. A type without Tensor Cores for it (bfloat16 on a T4) is emulated."""


FLOAT8 = "float8"
"""Types of 8 bits.

From capability 8.9 on, Tensor Cores multiply them twice as fast as float16, and accumulate in float32 too: 330.3
against 165.2 TFLOP/s on an RTX 4090 (NVIDIA Ada architecture whitepaper), 1979 against 989 on an H100 (H100
architecture whitepaper).
"""

COPIES: Mapping[str, float] = {"RTX 5090": 1490.0}
"""GB/s, read and written, of a copy in a GPU's memory, if its share of the datasheet differs from `rates.BANDWIDTH`.

RTX 5090: NVIDIA's sample p2pBandwidthLatencyTest on a machine with two of them and four RTX PRO 6000 of the same GDDR7
(repository voipmonitor/rtx6kpro, commit 29f3863, hardware/pcie-bandwidth.md): 1,490 and 1,488 GB/s of 1,792 on the two
fastest cards, 0.83. The page does not say which cards these are, and no other is faster. Kernels that read and write up
to 256 MiB reach no more, 1,366 to 1,451 GB/s (NVIDIA/TileGym issue 82; PyTorch's own kernels there 1,019 to 1,381).

On other GeForce cards the same sample agrees with `rates.BANDWIDTH`: 918 to 924 GB/s of 1,008 on an RTX 4090
(tinygrad/open-gpu-kernel-modules issue 6), 838 of 936 on an RTX 3090 (NVIDIA/nccl issue 1127).
"""


def bandwidth(spec: Spec) -> float:
    """Returns the bytes/s of memory-bound kernels: measured, or `rates.BANDWIDTH` of the datasheet's figure."""
    measured = COPIES.get(spec.key)
    return measured * 1e9 if measured else spec.bandwidth * rates.BANDWIDTH


def rate(spec: Spec, precision: str) -> float:
    """Returns the FLOP/s of a large matmul in `precision`, a key of `Spec.peak_flops`.

    It is the measured rate, or without a measurement `rates.COMPUTE` of the datasheet's peak. FLOAT8 is twice as fast
    as float16.
    """
    if precision == FLOAT8:
        return 2 * rate(spec, "float16")
    measured = MEASURED.get(spec.key, {}).get(precision)
    return measured * 1e12 if measured else spec.peak_flops[precision] * rates.COMPUTE


def known(spec: Spec, precision: str) -> bool:
    """Returns whether `spec` has hardware for that type, or a measured rate of its emulation."""
    if precision == FLOAT8:
        return spec.compute_capability >= (8, 9)
    return precision in spec.peak_flops or precision in MEASURED.get(spec.key, {})
