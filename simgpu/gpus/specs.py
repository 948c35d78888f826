"""The GPUs that can be simulated: one literal each, with names, memory, multiprocessors, context, links, peak rates.

To add a GPU, add one more `Spec(...)` (CONTRIBUTING.md, "A GPU"); what all GPUs of its compute capability share is in
`capabilities`. Every figure names its source in `Spec.sources`. The following holds for all of them:

- `total_memory` depends on the driver, by up to 2 %: newer drivers reserve more for themselves. The figure here is
  that of drivers of CUDA 13.0 (R580), which torch 2.13's default wheels (cu130) need, if it is published. Otherwise,
  and for V100, which those wheels no longer support, it is the newest published one.
- `context` is everything a process holds outside PyTorch's allocator: the CUDA context, the kernels loaded so far,
  the handles of cuBLAS and cuDNN. With lazy loading (CUDA_MODULE_LOADING=LAZY, torch's default since 1.13) it grows
  as kernels are first used, so it is not constant; processes differ by ±0.1 GiB. Most figures are derived: PyTorch's
  out-of-memory message gives what the process uses, what PyTorch has allocated and what it has reserved in addition,
  each rounded to 0.01 GiB. The context is the difference.
- `peak_flops` is dense (no sparsity), counts multiply and add as two operations, has fp32 accumulation for float16,
  and uses Tensor Cores if they support the type.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from simgpu.gpus.capabilities import CAPABILITIES, Capability
from simgpu.gpus.cublas_workspace import cublas_workspace_bytes

__all__ = ["SPECS", "Spec", "cublas_workspace_bytes", "spec"]

MIB = 2**20


@dataclass(frozen=True)
class Spec:
    """Describes one kind of GPU.

    key: the name given to `simgpu.simulated_gpu`, "A100-80GB".
    also: further accepted names, as torch or people write them.
    name: what `torch.cuda.get_device_name()` prints, "NVIDIA A100-SXM4-80GB".
    total_memory: bytes, as `torch.cuda.get_device_properties(0).total_memory` and out-of-memory messages report.
    compute_capability: (major, minor).
    multiprocessors: their number; scratch memory of kernels depends on it.
    context: bytes a process holds on the GPU outside PyTorch's allocator, after its first kernels.
    l2_cache: bytes, as `get_device_properties(0).L2_cache_size` reports.
    bandwidth: peak of the GPU's memory, bytes/s.
    host_link: peak of its PCIe link to the host, bytes/s in each direction.
    nvlink: peak of its NVLinks to other GPUs, bytes/s in each direction; 0 without NVLink.
    network: peak of the network between machines, bytes/s in each direction per GPU, in NVIDIA's own machine with
        this GPU (DGX); 0 without such a machine.
    peak_flops: dense peak rate by type, FLOP/s (OP/s for "int8"); a type without a published rate is missing.
        Keys: "float64", "float32", "tf32", "float16", "bfloat16", "int8".
    sources: the source of each figure, by field name; "links" covers `host_link`, `nvlink` and `network`, and
        "hardware" the fields not listed.
    """

    key: str
    name: str
    total_memory: int
    compute_capability: tuple[int, int]
    multiprocessors: int
    context: int
    l2_cache: int
    bandwidth: float
    host_link: float
    nvlink: float
    network: float
    peak_flops: Mapping[str, float] = field(hash=False)
    sources: Mapping[str, str] = field(repr=False, hash=False)
    also: tuple[str, ...] = ()

    @property
    def capability(self) -> Capability:
        """Returns the properties shared by all GPUs of this compute capability."""
        return CAPABILITIES[self.compute_capability]

    @property
    def max_threads_per_multiprocessor(self) -> int:
        """Returns the number of threads that a multiprocessor holds; scratch memory of kernels depends on it."""
        return self.capability.max_threads

    @property
    def context_source(self) -> str:
        """Returns the source of `context`, with the older figures that differ."""
        return self.sources["context"]

    @property
    def cublas_workspace(self) -> int:
        """Returns the bytes of one cuBLAS workspace in torch 2.12 and 2.13, without CUBLAS_WORKSPACE_CONFIG."""
        return cublas_workspace_bytes(self.compute_capability, environ={})


def spec(name: str) -> Spec:
    """Returns the `Spec` called `name`: a key of `SPECS`, or a device name as torch prints it.

    Case, spaces, dashes and the words NVIDIA, Tesla and GeForce are ignored: "rtx3090" and "NVIDIA GeForce RTX 3090"
    are the same. Boards that need the same memory as the listed one (the PCIe models of V100 and A100) are accepted
    too. Raises TypeError if `name` is not a string. Raises ValueError for any other name. The message has the most
    similar names, the known ones, and what to do for an unknown GPU.

    >>> spec("nvidia a100-sxm4-80gb").key
    'A100-80GB'
    """
    if not isinstance(name, str):
        raise TypeError(f"wanted the name of a GPU, such as 'A100-80GB', not {name!r}")
    key = _KEYS.get(_plain(name))
    if key is None:
        near = _nearest(name)
        quoted = f'"{near[0]}"' if near and " " in near[0] else (near or ["A100-80GB"])[0]
        guess = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ValueError(
            f"unknown GPU {name!r}; {guess}known: {', '.join(SPECS)}. For any other GPU, use the most "
            f"similar known one with the memory of yours: --gpu {quoted} --memory 12GiB, or in Python "
            f"simgpu.simulated_gpu({(near or ['A100-80GB'])[0]!r}, total_memory=...), in bytes"
        )
    return SPECS[key]


def _nearest(name: str) -> list[str]:
    """Returns the keys whose names are most similar to `name`, at most three, best first."""
    plain = _plain(name)
    near = [key for known, key in _KEYS.items() if plain and known.startswith(plain)]
    near += [key for known, key in _KEYS.items() if len(known) > 2 and plain.startswith(known)]
    near = near or [_KEYS[known] for known in difflib.get_close_matches(plain, _KEYS, n=6, cutoff=0.7)]
    return list(dict.fromkeys(near))[:3]


def _plain(name: str) -> str:
    """Returns `name` without case, punctuation and the brand words: "NVIDIA GeForce RTX 3090" → "rtx3090"."""
    return re.sub(r"[^a-z0-9]|nvidia|tesla|geforce", "", name.lower())


def _tera(**rates: float) -> Mapping[str, float]:
    """Returns rates given in 10¹² operations per second, as a read-only mapping in operations per second."""
    return MappingProxyType({dtype: rate * 1e12 for dtype, rate in rates.items()})


def _by_difference(gib: str, text: str) -> str:
    return f"derived, {gib} GiB ± 0.02: {text}"


# PCIe, 16 lanes: 8, 16 and 32 GT/s per lane with 128b/130b encoding
_GEN3, _GEN4, _GEN5 = (16 * rate * 1e9 / 8 * 128 / 130 for rate in (8, 16, 32))

# InfiniBand, 4 lanes: 100, 200 and 400 Gb/s
_EDR, _HDR, _NDR = (rate * 1e9 / 8 for rate in (100, 200, 400))

_FP64 = "float64 = float32 / {}: CUDA C++ Programming Guide, arithmetic throughput"
_DEVICE_QUERY = "CUDA sample deviceQuery, published output, driver of CUDA {}"
_A100_DATASHEET = "NVIDIA A100 datasheet (SXM)"
_A100_CONTEXT = (
    "0.47 GiB, published for an A100-80GB with torch 2.1.1+cu121, lazy loading (Bekman, Machine Learning "
    "Engineering); out-of-memory texts of torch 2.x give 0.48-0.50 (e.g. 74.35 GiB in use - 73.25 allocated "
    "- 615.51 MiB reserved). With eager loading 0.90 (torch 1.13.1) and 1.78 (1.10.2)"
)
_V100_CONTEXT = _by_difference(
    "0.37",
    "median of six out-of-memory texts of torch 2.x on V100s of 32 GB (e.g. 31.72 GiB in use - 30.02 "
    "allocated - 1.33 reserved). Before lazy loading: 1351 MiB (CUDA 10.2), 1343 MiB (transformers' page on "
    "training on one GPU)",
)
_V100_PEAKS = _tera(float64=7.8, float32=15.7, float16=125)
_A100_PEAKS = _tera(float64=19.5, float32=19.5, tf32=156, float16=312, bfloat16=312, int8=624)
_HOPPER_PEAKS = _tera(float64=66.9, float32=66.9, tf32=494.7, float16=989.4, bfloat16=989.4, int8=1978.9)

_ALL = (
    Spec(
        key="T4",
        also=("T4-16GB",),
        name="Tesla T4",
        total_memory=15_637_086_208,
        compute_capability=(7, 5),
        multiprocessors=40,
        context=133 * MIB,
        l2_cache=4 * MIB,
        bandwidth=320e9,
        host_link=_GEN3,
        nvlink=0,
        network=0,
        peak_flops=_tera(float64=8.1 / 32, float32=8.1, float16=65, int8=130),
        sources={
            "links": "PCIe 3.0 x16, NVIDIA T4 datasheet",
            "total_memory": "published with driver 580.82.07, and with torch 2.13.0+cu130; older drivers up "
            "to 15109 MiB",
            "context": _by_difference(
                "0.13",
                "median of four out-of-memory texts of torch 2.x (e.g. 12.62 GiB in use - 12.44 allocated "
                "- 56.76 MiB reserved)",
            ),
            "l2_cache": "L2_cache_size as torch prints it",
            "bandwidth": "256 bits × 5001 MHz × 2 (GDDR6), NVIDIA T4 product brief",
            "peak_flops": "NVIDIA T4 datasheet; " + _FP64.format(32),
            "hardware": "get_device_properties as torch prints it",
        },
    ),
    Spec(
        key="V100-16GB",
        also=("Tesla V100-PCIE-16GB",),
        name="Tesla V100-SXM2-16GB",
        total_memory=16_928_342_016,
        compute_capability=(7, 0),
        multiprocessors=80,
        context=379 * MIB,
        l2_cache=6 * MIB,
        bandwidth=900e9,
        host_link=_GEN3,
        nvlink=150e9,
        network=_EDR / 2,
        peak_flops=_V100_PEAKS,
        sources={
            "links": "PCIe 3.0 x16, NVLink 300 GB/s in both directions, NVIDIA V100 datasheet (SXM2); "
            "DGX-1: four EDR InfiniBand ports for 8 GPUs, its datasheet",
            "total_memory": _DEVICE_QUERY.format("12.4") + "; 16,945,512,448 B with drivers up to CUDA 11",
            "context": _V100_CONTEXT,
            "l2_cache": _DEVICE_QUERY.format("9.0"),
            "bandwidth": "NVIDIA V100 datasheet (SXM2)",
            "peak_flops": "NVIDIA Tesla V100 architecture whitepaper (SXM2)",
            "hardware": _DEVICE_QUERY.format("12.4"),
        },
    ),
    Spec(
        key="V100-32GB",
        also=("Tesla V100-PCIE-32GB",),
        name="Tesla V100-SXM2-32GB",
        total_memory=34_072_559_616,
        compute_capability=(7, 0),
        multiprocessors=80,
        context=379 * MIB,
        l2_cache=6 * MIB,
        bandwidth=900e9,
        host_link=_GEN3,
        nvlink=150e9,
        network=_EDR / 2,
        peak_flops=_V100_PEAKS,
        sources={
            "links": "PCIe 3.0 x16, NVLink 300 GB/s in both directions, NVIDIA V100 datasheet (SXM2); "
            "DGX-1: four EDR InfiniBand ports for 8 GPUs, its datasheet",
            "total_memory": _DEVICE_QUERY.format("12.9") + "; 34,089,730,048 B with CUDA 11.4's",
            "context": _V100_CONTEXT,
            "l2_cache": _DEVICE_QUERY.format("9.0") + ", of the 16 GB model",
            "bandwidth": "NVIDIA V100 datasheet (SXM2)",
            "peak_flops": "NVIDIA Tesla V100 architecture whitepaper (SXM2)",
            "hardware": _DEVICE_QUERY.format("12.9"),
        },
    ),
    Spec(
        key="RTX 3060",
        also=("3060", "RTX 3060 12GB"),
        name="NVIDIA GeForce RTX 3060",
        total_memory=11_901 * MIB,
        compute_capability=(8, 6),
        multiprocessors=28,
        context=328 * MIB,
        l2_cache=2_359_296,
        bandwidth=360e9,
        host_link=_GEN4,
        nvlink=0,
        network=0,
        peak_flops=_tera(float64=12.74 / 64, float32=12.74, tf32=12.74, float16=25.4, bfloat16=25.4, int8=101.6),
        sources={
            "links": "PCIe 4.0 x16, no NVLink, NVIDIA GeForce RTX 3060 specifications",
            "total_memory": _DEVICE_QUERY.format("13.0")
            + ", in whole MiB; 11.62 and 11.63 GiB in out-of-memory texts; "
            "older drivers up to 12044 MiB, Windows 12288 MiB",
            "context": _by_difference(
                "0.32",
                "one out-of-memory text of torch 2.x of a 12 GB card of 11.63 GiB, whose name it "
                "does not say (11.53 GiB "
                "in use - 11.05 allocated - 164.09 MiB reserved); an RTX 3090, of the same compute "
                "capability, has 0.31",
            ),
            "l2_cache": _DEVICE_QUERY.format("12.6"),
            "bandwidth": "192 bits × 7501 MHz × 2 (GDDR6): the same deviceQuery; 360 GB/s as published",
            "peak_flops": "float32: 28 multiprocessors × 128 lanes × 2 × 1777 MHz (deviceQuery); "
            "Tensor Cores in the ratio "
            "of the GA102 architecture whitepaper's RTX 3090; " + _FP64.format(64),
            "hardware": _DEVICE_QUERY.format("12.6"),
        },
    ),
    Spec(
        key="RTX 3090",
        also=("3090",),
        name="NVIDIA GeForce RTX 3090",
        total_memory=25_296_044_032,
        compute_capability=(8, 6),
        multiprocessors=82,
        context=317 * MIB,
        l2_cache=6 * MIB,
        bandwidth=936e9,
        host_link=_GEN4,
        nvlink=56.25e9,
        network=0,
        peak_flops=_tera(float64=35.6 / 64, float32=35.6, tf32=35.6, float16=71, bfloat16=71, int8=284),
        sources={
            "links": "PCIe 4.0 x16, NVLink 112.5 GB/s in both directions, GA102 architecture whitepaper",
            "total_memory": "published with driver 580.119.02; torch 2.13.0+cu130 says 24124 MiB too; "
            "older drivers up to 24268 MiB, Windows 24575 MiB",
            "context": _by_difference(
                "0.31",
                "median of five out-of-memory texts of torch 2.x (e.g. 22.60 GiB in use - 19.46 allocated "
                "- 2.83 reserved). Before lazy loading: 1639 MiB (CUDA 11.4), 1644 and 1687 (torch 1.7, 1.8)",
            ),
            "l2_cache": "NVIDIA Ampere GA102 architecture whitepaper",
            "bandwidth": "NVIDIA Ampere GA102 architecture whitepaper",
            "peak_flops": "NVIDIA Ampere GA102 architecture whitepaper; " + _FP64.format(64),
            "hardware": _DEVICE_QUERY.format("11.8"),
        },
    ),
    Spec(
        key="RTX 4090",
        also=("4090",),
        name="NVIDIA GeForce RTX 4090",
        total_memory=25_250_627_584,
        compute_capability=(8, 9),
        multiprocessors=128,
        context=448 * MIB,
        l2_cache=72 * MIB,
        bandwidth=1008e9,
        host_link=_GEN4,
        nvlink=0,
        network=0,
        peak_flops=_tera(float64=82.6 / 64, float32=82.6, tf32=82.6, float16=165.2, bfloat16=165.2, int8=660.6),
        sources={
            "links": "PCIe 4.0 x16, NVIDIA Ada architecture whitepaper",
            "total_memory": _DEVICE_QUERY.format("13.0") + "; driver 580.126.20 the same; older drivers up to "
            "24217 MiB, Windows 24563 MiB",
            "context": "448 MiB for a second process on the GPU, in an out-of-memory text that names the RTX "
            "4090; two texts by difference: 0.38 and 0.45 GiB",
            "l2_cache": "L2_cache_size as torch prints it",
            "bandwidth": "NVIDIA Ada architecture whitepaper",
            "peak_flops": "NVIDIA Ada architecture whitepaper; " + _FP64.format(64),
            "hardware": _DEVICE_QUERY.format("13.0"),
        },
    ),
    Spec(
        key="RTX 5090",
        also=("5090",),
        name="NVIDIA GeForce RTX 5090",
        total_memory=33_680_457_728,
        compute_capability=(12, 0),
        multiprocessors=170,
        context=607 * MIB,
        l2_cache=96 * MIB,
        bandwidth=1792e9,
        host_link=_GEN5,
        nvlink=0,
        network=0,
        peak_flops=_tera(float64=104.8 / 64, float32=104.8, tf32=104.8, float16=209.6, bfloat16=209.6, int8=838.4),
        sources={
            "links": "PCIe 5.0 x16, no NVLink: specifications as spheron.network publishes them",
            "total_memory": _DEVICE_QUERY.format("12.8") + " (NVIDIA/nccl issue 1637); 31.37 GiB in "
            "out-of-memory texts; 33,677,180,928 B with driver 570.133.04",
            "context": _by_difference(
                "0.59",
                "mean of two out-of-memory texts of torch 2.x, Wan-Video/Wan2.1 issue 465 (31.34 GiB in use - 30.74 "
                "allocated - 19.41 MiB reserved) and TrajectoryCrafter issue 20 (26.89 - 25.95 - 343.86 MiB)",
            ),
            "l2_cache": _DEVICE_QUERY.format("12.8"),
            "bandwidth": "512 bits × 14001 MHz × 2: the same deviceQuery; 1792 GB/s as published",
            "peak_flops": "float32: 170 multiprocessors × 128 lanes × 2 × 2407 MHz (Linux Format, May 2025). Tensor "
            "Cores: 838.4 TFLOP/s published for float16, sparse and accumulated in float16; dense and accumulated in "
            "float32 is a quarter of it, as on other GeForce cards; tf32 half of that, int8 four times; "
            + _FP64.format(64),
            "hardware": _DEVICE_QUERY.format("12.8"),
        },
    ),
    Spec(
        key="A10G",
        name="NVIDIA A10G",
        total_memory=22_587 * MIB,
        compute_capability=(8, 6),
        multiprocessors=80,
        context=282 * MIB,
        l2_cache=6 * MIB,
        bandwidth=600e9,
        host_link=_GEN4,
        nvlink=0,
        network=0,
        peak_flops=_tera(float64=35 / 64, float32=35, tf32=35, float16=70, bfloat16=70, int8=140),
        sources={
            "links": "PCIe 4.0 x16, no NVLink, NVIDIA A10 datasheet, of the same board",
            "total_memory": "torch 2.15's nightly with cu130 prints 22587 MB, cut to whole MiB "
            "(torchcodec's documentation); "
            "22.06 GiB in out-of-memory texts",
            "context": _by_difference(
                "0.275",
                "mean of two out-of-memory texts of torch 2.x that name the A10G, or its size (21.25 "
                "GiB in use - 21.00 "
                "allocated; 22.03 - 20.51 - 1.22 GiB reserved)",
            ),
            "l2_cache": "L2_cache_size as torch prints it",
            "bandwidth": "600 GB/s, NVIDIA A10 datasheet, of the same memory",
            "peak_flops": "35 and, on Tensor Cores, 70 TFLOP/s dense: NVIDIA A10G datasheet; " + _FP64.format(64),
            "hardware": "get_device_properties as torch prints it",
        },
    ),
    Spec(
        key="RTX A6000",
        also=("A6000",),
        name="NVIDIA RTX A6000",
        total_memory=48_671 * MIB,
        compute_capability=(8, 6),
        multiprocessors=84,
        context=262 * MIB,
        l2_cache=6 * MIB,
        bandwidth=768e9,
        host_link=_GEN4,
        nvlink=56.25e9,
        network=0,
        peak_flops=_tera(float64=38.7 / 64, float32=38.7, tf32=77.4, float16=154.8, bfloat16=154.8, int8=309.7),
        sources={
            "links": "PCIe 4.0 x16; four NVLinks of 14.062 GB/s each, as nvidia-smi nvlink prints them",
            "total_memory": "47.53 GiB, ± 5 MiB, in an out-of-memory text of December 2025 "
            "(black-forest-labs/flux2 issue "
            "23); torch prints 48676 MB; 51,160,023,040 B with a driver of CUDA 12.7",
            "context": _by_difference(
                "0.26",
                "the same out-of-memory text (47.35 GiB in use - 47.08 allocated - 14.45 MiB "
                "reserved), of a process that "
                "loads weights and has run few kernels",
            ),
            "l2_cache": _DEVICE_QUERY.format("12.7"),
            "bandwidth": "384 bits × 8001 MHz × 2 (GDDR6): the same deviceQuery; 768 GB/s, NVIDIA RTX A6000 datasheet",
            "peak_flops": "NVIDIA RTX A6000 datasheet, whose Tensor Core rates are with sparsity, twice these; "
            + _FP64.format(64),
            "hardware": _DEVICE_QUERY.format("12.7"),
        },
    ),
    Spec(
        key="A100-40GB",
        also=(
            "A100-SXM-40GB",
            "NVIDIA A100-PCIE-40GB",
        ),
        name="NVIDIA A100-SXM4-40GB",
        total_memory=42_405_855_232,
        compute_capability=(8, 0),
        multiprocessors=108,
        context=481 * MIB,
        l2_cache=40 * MIB,
        bandwidth=1555e9,
        host_link=_GEN4,
        nvlink=300e9,
        network=_HDR,
        peak_flops=_A100_PEAKS,
        sources={
            "links": "PCIe 4.0 x16, NVLink 600 GB/s in both directions, NVIDIA A100 datasheet (SXM); "
            "DGX A100: eight HDR InfiniBand ports for 8 GPUs, its datasheet",
            "total_memory": _DEVICE_QUERY.format("13.0") + "; 42,298,834,944 B with CUDA 12.2's",
            "context": _A100_CONTEXT,
            "l2_cache": _DEVICE_QUERY.format("13.0"),
            "bandwidth": _A100_DATASHEET,
            "peak_flops": _A100_DATASHEET,
            "hardware": _DEVICE_QUERY.format("13.0"),
        },
    ),
    Spec(
        key="A100-80GB",
        also=(
            "A100-SXM-80GB",
            "NVIDIA A100 80GB PCIe",
        ),
        name="NVIDIA A100-SXM4-80GB",
        total_memory=85_093_777_408,
        compute_capability=(8, 0),
        multiprocessors=108,
        context=481 * MIB,
        l2_cache=40 * MIB,
        bandwidth=2039e9,
        host_link=_GEN4,
        nvlink=300e9,
        network=_HDR,
        peak_flops=_A100_PEAKS,
        sources={
            "links": "PCIe 4.0 x16, NVLink 600 GB/s in both directions, NVIDIA A100 datasheet (SXM); "
            "DGX A100: eight HDR InfiniBand ports for 8 GPUs, its datasheet",
            "total_memory": "published with torch 2.7.1+cu126; the PCIe model's with driver 580.173.02 is "
            "the same; 84,987,740,160 B (CUDA 12.2's driver) to 81251 MiB (older) elsewhere",
            "context": _A100_CONTEXT,
            "l2_cache": _DEVICE_QUERY.format("12.2"),
            "bandwidth": _A100_DATASHEET,
            "peak_flops": _A100_DATASHEET,
            "hardware": _DEVICE_QUERY.format("12.2"),
        },
    ),
    Spec(
        key="L4",
        also=("L4-24GB",),
        name="NVIDIA L4",
        total_memory=23_659_151_360,
        compute_capability=(8, 9),
        multiprocessors=58,
        context=211 * MIB,
        l2_cache=48 * MIB,
        bandwidth=300e9,
        host_link=_GEN4,
        nvlink=0,
        network=0,
        peak_flops=_tera(float64=30.3 / 64, float32=30.3, tf32=60, float16=121, bfloat16=121, int8=242.5),
        sources={
            "links": "PCIe 4.0 x16, NVIDIA L4 datasheet",
            "total_memory": "published with torch 2.11.0+cu130 and driver 580.82.07; 22518 MiB (CUDA 12.0's "
            "driver) to 22693 MiB elsewhere",
            "context": _by_difference(
                "0.21",
                "one out-of-memory text of torch 2.x (21.96 GiB in use - 21.69 allocated - 65.15 MiB reserved)",
            ),
            "l2_cache": "NVIDIA Ada architecture whitepaper (AD104)",
            "bandwidth": "NVIDIA L4 datasheet",
            "peak_flops": "NVIDIA L4 datasheet, half of its figures with sparsity; " + _FP64.format(64),
            "hardware": "58 SMs as torch reports them, published with total_memory",
        },
    ),
    Spec(
        key="L40S",
        name="NVIDIA L40S",
        total_memory=45_455 * MIB,
        compute_capability=(8, 9),
        multiprocessors=142,
        context=471 * MIB,
        l2_cache=96 * MIB,
        bandwidth=864e9,
        host_link=_GEN4,
        nvlink=0,
        network=0,
        peak_flops=_tera(float64=91.6 / 64, float32=91.6, tf32=183, float16=362.05, bfloat16=362.05, int8=733),
        sources={
            "links": "PCIe 4.0 x16, no NVLink, NVIDIA L40S datasheet",
            "total_memory": "44.39 GiB, ± 5 MiB, in out-of-memory texts of 2025 and 2026 that name the L40S; 44.42 GiB "
            "in one of February 2025 (stepfun-ai/Step-Video-T2V issue 8); 45589 MB as an older torch prints it",
            "context": _by_difference(
                "0.46",
                "mean of two out-of-memory texts of torch 2.x on cards of this size (44.29 GiB in "
                "use - 43.88 allocated "
                "- 582 KiB reserved, which names the L40S; 23.32 - 22.60 - 215.14 MiB, which does not)",
            ),
            "l2_cache": _DEVICE_QUERY.format("12.4"),
            "bandwidth": "384 bits × 9001 MHz × 2 (GDDR6): the same deviceQuery; 864 GB/s, NVIDIA L40S datasheet",
            "peak_flops": "NVIDIA L40S datasheet, without sparsity; " + _FP64.format(64),
            "hardware": _DEVICE_QUERY.format("12.4"),
        },
    ),
    Spec(
        key="H100",
        also=(
            "H100-80GB",
            "H100-SXM",
            "H100-SXM5",
            "H100-SXM5-80GB",
        ),
        name="NVIDIA H100 80GB HBM3",
        total_memory=85_017_755_648,
        compute_capability=(9, 0),
        multiprocessors=132,
        context=666 * MIB,
        l2_cache=50 * MIB,
        bandwidth=3350e9,
        host_link=_GEN5,
        nvlink=450e9,
        network=_NDR,
        peak_flops=_HOPPER_PEAKS,
        sources={
            "links": "PCIe 5.0 x16, NVLink 900 GB/s in both directions, NVIDIA H100 datasheet (SXM); "
            "DGX H100: eight NDR InfiniBand ports for 8 GPUs, its datasheet",
            "total_memory": _DEVICE_QUERY.format("13.0") + "; 85,028,896,768 B with CUDA 12.8's",
            "context": _by_difference(
                "0.65",
                "one out-of-memory text of torch 2.x (72.18 GiB in use - 36.69 allocated - 34.84 reserved); "
                "four on cards of 79.19 GiB, H100 PCIe among them, give 0.59-0.75",
            ),
            "l2_cache": "L2_cache_size as torch prints it",
            "bandwidth": "NVIDIA H100 datasheet (SXM)",
            "peak_flops": "NVIDIA H100 architecture whitepaper (SXM5)",
            "hardware": _DEVICE_QUERY.format("13.0"),
        },
    ),
    Spec(
        key="H200",
        also=(
            "H200-141GB",
            "H200-SXM",
        ),
        name="NVIDIA H200",
        total_memory=150_110_011_392,
        compute_capability=(9, 0),
        multiprocessors=132,
        context=594 * MIB,
        l2_cache=60 * MIB,
        bandwidth=4800e9,
        host_link=_GEN5,
        nvlink=450e9,
        network=_NDR,
        peak_flops=_HOPPER_PEAKS,
        sources={
            "links": "PCIe 5.0 x16, NVLink 900 GB/s in both directions, NVIDIA H200 datasheet (SXM); "
            "DGX H200: eight NDR InfiniBand ports for 8 GPUs, its datasheet",
            "total_memory": "published, in the allocator's own warning; torch prints 143156 MB; 139.72 to "
            "139.81 GiB in out-of-memory texts",
            "context": _by_difference(
                "0.58",
                "median of four out-of-memory texts of torch 2.x, 0.51 to 0.66 (e.g. 139.75 GiB in use "
                "- 138.59 allocated - 508.12 MiB reserved)",
            ),
            "l2_cache": "L2_cache_size as torch prints it",
            "bandwidth": "NVIDIA H200 datasheet (SXM)",
            "peak_flops": "NVIDIA H100 architecture whitepaper (SXM5): the chip is the H100's",
            "hardware": "get_device_properties as torch prints it",
        },
    ),
    Spec(
        key="B200",
        also=(
            "B200-180GB",
            "B200-192GB",
        ),
        name="NVIDIA B200",
        total_memory=191_503_007_744,
        compute_capability=(10, 0),
        multiprocessors=148,
        context=712 * MIB,
        l2_cache=253 * MIB // 2,
        bandwidth=8000e9,
        host_link=_GEN5,
        nvlink=900e9,
        network=_NDR,
        peak_flops=_tera(float64=40, float32=80, tf32=1100, float16=2250, bfloat16=2250, int8=4500),
        sources={
            "links": "PCIe 5.0 x16, NVLink 1.8 TB/s in both directions, HGX B200 datasheet; "
            "DGX B200: eight NDR InfiniBand ports for 8 GPUs, its datasheet",
            "total_memory": "published with torch 2.13.0+cu130; torch prints 182631 MB",
            "context": _by_difference(
                "0.695",
                "one out-of-memory text of torch 2.x (168.34 GiB in use - 167.64 allocated "
                "- 4.62 MiB reserved; Bekman, Machine Learning Engineering)",
            ),
            "l2_cache": "126.50 MiB, device query in pytorch/ao pull request 4002",
            "bandwidth": "NVIDIA Blackwell architecture technical brief (HGX B200); what the driver reports, "
            "7680 bits × 3996 MHz × 2, makes 7.67 TB/s (pytorch/ao pull request 4002)",
            "peak_flops": "NVIDIA Blackwell architecture technical brief (HGX B200, 1000 W)",
            "hardware": "get_device_properties as torch prints it",
        },
    ),
)

SPECS: Mapping[str, Spec] = MappingProxyType({each.key: each for each in _ALL})
_KEYS = {_plain(name): each.key for each in _ALL for name in (each.key, each.name, *each.also)}
