"""The GPUs that can be simulated: memory, compute capability, multiprocessors, context, peak rates."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

MiB = 2**20
KiB = 2**10


def cublas_workspace_bytes(
    compute_capability: tuple[int, int],
    torch_version: tuple[int, int] = (2, 13),
    environ: Mapping[str, str] | None = None,
) -> int:
    """Bytes of the workspace that PyTorch gives a cuBLAS handle."""
    major = compute_capability[0]
    if torch_version >= (2, 14):
        large = major >= 9
    elif torch_version >= (2, 12):
        large = major in (9, 10, 12)
    else:
        large = major == 9
    default = 32 * MiB if large else 2 * 4096 * KiB + 8 * 16 * KiB
    config = (os.environ if environ is None else environ).get("CUBLAS_WORKSPACE_CONFIG")
    if config is None:
        return default
    pairs = re.findall(r":([0-9]+):([0-9]+)", config)
    if not pairs:
        warnings.warn(
            f"Could not parse CUBLAS_WORKSPACE_CONFIG, using default workspace size of {default} bytes.",
            stacklevel=2,
        )
        return default
    return sum(int(size) * KiB * int(count) for size, count in pairs)


@dataclass(frozen=True)
class Spec:
    """One GPU model."""

    key: str
    name: str
    total_memory: int
    compute_capability: tuple[int, int]
    multiprocessors: int
    max_threads_per_multiprocessor: int
    context: int
    l2_cache: int
    bandwidth: float
    peak_flops: Mapping[str, float]
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def context_source(self) -> str:
        """Where `context` comes from; starts with "not published; assumed" where it is not known."""
        return self.sources["context"]

    @property
    def cublas_workspace(self) -> int:
        """Bytes of one cuBLAS workspace on this GPU in torch 2.12 and 2.13, `CUBLAS_WORKSPACE_CONFIG` unset."""
        return cublas_workspace_bytes(self.compute_capability, environ={})


_T = 1e12
_ASSUMED = "not published; assumed: 512 MiB"


def _spec(key, name, mem, cc, sms, threads, ctx, l2, gbs, tflops):
    return Spec(
        key, name, mem * MiB, cc, sms, threads, ctx * MiB, l2 * MiB, gbs * 1e9,
        MappingProxyType({k: v * _T for k, v in tflops.items()}), {"context": _ASSUMED},
    )


SPECS: Mapping[str, Spec] = MappingProxyType({s.key: s for s in (
    _spec("T4", "Tesla T4", 15095, (7, 5), 40, 1024, 512, 4, 320, dict(float32=8.1, float16=65, int8=130)),
    _spec("V100-16GB", "Tesla V100-SXM2-16GB", 16160, (7, 0), 80, 2048, 1351, 6, 900,
          dict(float64=7.8, float32=15.7, float16=125)),
    _spec("V100-32GB", "Tesla V100-SXM2-32GB", 32510, (7, 0), 80, 2048, 1351, 6, 900,
          dict(float64=7.8, float32=15.7, float16=125)),
    _spec("RTX 3090", "NVIDIA GeForce RTX 3090", 24268, (8, 6), 82, 1536, 1639, 6, 936,
          dict(float32=35.6, tf32=35.6, float16=71, bfloat16=71, int8=284)),
    _spec("RTX 4090", "NVIDIA GeForce RTX 4090", 24217, (8, 9), 128, 1536, 512, 72, 1008,
          dict(float32=82.6, tf32=82.6, float16=165.2, bfloat16=165.2, int8=660.6)),
    _spec("A100-40GB", "NVIDIA A100-SXM4-40GB", 40536, (8, 0), 108, 2048, 481, 40, 1555,
          dict(float64=9.7, float32=19.5, tf32=156, float16=312, bfloat16=312, int8=624)),
    _spec("A100-80GB", "NVIDIA A100-SXM4-80GB", 81154, (8, 0), 108, 2048, 481, 40, 2039,
          dict(float64=9.7, float32=19.5, tf32=156, float16=312, bfloat16=312, int8=624)),
    _spec("L4", "NVIDIA L4", 22478, (8, 9), 58, 1536, 512, 48, 300,
          dict(float32=30.3, tf32=60, float16=121, bfloat16=121, int8=242)),
    _spec("H100", "NVIDIA H100 80GB HBM3", 81079, (9, 0), 132, 2048, 512, 50, 3350,
          dict(float64=34, float32=67, tf32=494.7, float16=989.4, bfloat16=989.4, int8=1979)),
    _spec("H200", "NVIDIA H200", 143156, (9, 0), 132, 2048, 512, 60, 4800,
          dict(float64=34, float32=67, tf32=494.7, float16=989.4, bfloat16=989.4, int8=1979)),
    _spec("B200", "NVIDIA B200", 182642, (10, 0), 148, 2048, 512, 126, 8000,
          dict(float64=37, float32=75, tf32=1125, float16=2250, bfloat16=2250, int8=4500)),
)})


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia").removeprefix("tesla").removeprefix("geforce")


def spec(name: str) -> Spec:
    """The `Spec` of a GPU by its key or by the name torch prints."""
    for s in SPECS.values():
        if _plain(name) in (_plain(s.key), _plain(s.name)):
            return s
    raise ValueError(f"unknown GPU {name!r}; known: {', '.join(SPECS)}")
