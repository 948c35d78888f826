"""The GPUs that can be simulated: memory, compute capability, multiprocessors, context, peak rates.

Every figure names its source in `Spec.sources`. What holds for all of them:

- `total_memory` depends on the driver, by up to 2 %: newer drivers keep more for themselves. Taken is what
  drivers of CUDA 13.0 (R580) report, which torch 2.13's default wheels (cu130) need, where such a figure is
  published; else, and for V100, which those wheels no longer support, the newest that is.
- `context` is everything a process holds outside PyTorch's allocator: the CUDA context, the kernels loaded
  so far, the handles of cuBLAS and cuDNN. With lazy loading (CUDA_MODULE_LOADING=LAZY, torch's choice since
  1.13) it grows as kernels are first used, so it is no constant; processes differ by ±0.1 GiB. Most figures
  are derived: PyTorch's out-of-memory text says what the process has in use, what PyTorch has allocated and
  what it has reserved besides, each rounded to 0.01 GiB, and the context is the difference.
- `peak_flops` is dense (no sparsity), multiply and add counted as two, with fp32 accumulation for float16,
  and on Tensor Cores where the type has them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from simgpu.hardware.cublas_workspace import cublas_workspace_bytes

__all__ = ["SPECS", "Spec", "cublas_workspace_bytes", "spec"]

MiB = 2**20


@dataclass(frozen=True)
class Spec:
    """One kind of GPU.

    key: the name given to `labkit.use_gpu`, "A100-80GB".
    name: what `torch.cuda.get_device_name()` prints, "NVIDIA A100-SXM4-80GB".
    total_memory: bytes, as `torch.cuda.get_device_properties(0).total_memory` and out-of-memory texts report.
    compute_capability: (major, minor).
    multiprocessors, max_threads_per_multiprocessor: counts; scratch memory of kernels depends on them.
    context: bytes a process holds on the GPU outside PyTorch's allocator, after its first kernels.
    l2_cache: bytes, as `get_device_properties(0).L2_cache_size` reports.
    bandwidth: peak of the GPU's memory, bytes/s.
    host_link: peak of its PCIe link to the host, bytes/s in each direction.
    nvlink: peak of its NVLinks to other GPUs, bytes/s in each direction; 0 if it has none.
    peak_flops: dense peak rate by type, FLOP/s (OP/s for "int8"); a type the GPU has no published rate for is
        missing. Keys: "float64", "float32", "tf32", "float16", "bfloat16", "int8".
    sources: where each figure comes from, by field name; "hardware" covers the fields not listed.
    """

    key: str
    name: str
    total_memory: int
    compute_capability: tuple[int, int]
    multiprocessors: int
    max_threads_per_multiprocessor: int
    context: int
    l2_cache: int
    bandwidth: float
    host_link: float
    nvlink: float
    peak_flops: Mapping[str, float] = field(hash=False)
    sources: Mapping[str, str] = field(repr=False, hash=False)

    @property
    def context_source(self) -> str:
        """Where `context` comes from, with the older figures that differ."""
        return self.sources["context"]

    @property
    def cublas_workspace(self) -> int:
        """Bytes of one cuBLAS workspace in torch 2.12 and 2.13, when CUBLAS_WORKSPACE_CONFIG is not set."""
        return cublas_workspace_bytes(self.compute_capability, environ={})


def spec(name: str) -> Spec:
    """The `Spec` called `name`: a key of `SPECS`, or a device name as torch prints it.

    Case, spaces, dashes and the words NVIDIA, Tesla and GeForce do not matter: "rtx3090" and
    "NVIDIA GeForce RTX 3090" are the same. Boards that differ from the listed one in nothing that decides
    memory (the PCIe models of V100 and A100) are found too. ValueError, with the known names, for any other.

    >>> spec("nvidia a100-sxm4-80gb").key
    'A100-80GB'
    """
    key = _KEYS.get(_plain(name))
    if key is None:
        raise ValueError(f"unknown GPU {name!r}; known: {', '.join(SPECS)}")
    return SPECS[key]


def _plain(name: str) -> str:
    """`name` without case, punctuation and the maker's brand words: "NVIDIA GeForce RTX 3090" → "rtx3090"."""
    return re.sub(r"[^a-z0-9]|nvidia|tesla|geforce", "", name.lower())


def _tera(**rates: float) -> Mapping[str, float]:
    """Rates given in 10¹² operations per second, read-only."""
    return MappingProxyType({dtype: rate * 1e12 for dtype, rate in rates.items()})


def _by_difference(gib: str, text: str) -> str:
    return f"derived, {gib} GiB ± 0.02: {text}"


# PCIe, 16 lanes: 8, 16 and 32 GT/s a lane with 128b/130b encoding
_GEN3, _GEN4, _GEN5 = (16 * rate * 1e9 / 8 * 128 / 130 for rate in (8, 16, 32))
_LINKS = {  # by key: PCIe, NVLink (half of the figure for both directions), source
    "T4": (_GEN3, 0, "PCIe 3.0 x16, NVIDIA T4 datasheet"),
    "V100-16GB": (_GEN3, 150e9, "PCIe 3.0 x16, NVLink 300 GB/s in both directions, NVIDIA V100 datasheet (SXM2)"),
    "V100-32GB": (_GEN3, 150e9, "PCIe 3.0 x16, NVLink 300 GB/s in both directions, NVIDIA V100 datasheet (SXM2)"),
    "RTX 3090": (_GEN4, 56.25e9, "PCIe 4.0 x16, NVLink 112.5 GB/s in both directions, GA102 architecture whitepaper"),
    "RTX 4090": (_GEN4, 0, "PCIe 4.0 x16, NVIDIA Ada architecture whitepaper"),
    "A100-40GB": (_GEN4, 300e9, "PCIe 4.0 x16, NVLink 600 GB/s in both directions, NVIDIA A100 datasheet (SXM)"),
    "A100-80GB": (_GEN4, 300e9, "PCIe 4.0 x16, NVLink 600 GB/s in both directions, NVIDIA A100 datasheet (SXM)"),
    "L4": (_GEN4, 0, "PCIe 4.0 x16, NVIDIA L4 datasheet"),
    "H100": (_GEN5, 450e9, "PCIe 5.0 x16, NVLink 900 GB/s in both directions, NVIDIA H100 datasheet (SXM)"),
    "H200": (_GEN5, 450e9, "PCIe 5.0 x16, NVLink 900 GB/s in both directions, NVIDIA H200 datasheet (SXM)"),
    "B200": (_GEN5, 900e9, "PCIe 5.0 x16, NVLink 1.8 TB/s in both directions, HGX B200 datasheet"),
}

_THREADS = "CUDA C++ Programming Guide, technical specifications per compute capability"
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
        name="Tesla T4",
        total_memory=15_637_086_208,
        compute_capability=(7, 5),
        multiprocessors=40,
        max_threads_per_multiprocessor=1024,
        context=133 * MiB,
        l2_cache=4 * MiB,
        bandwidth=320e9,
        host_link=_LINKS["T4"][0],
        nvlink=_LINKS["T4"][1],
        peak_flops=_tera(float64=8.1 / 32, float32=8.1, float16=65, int8=130),
        sources={
            "host_link": _LINKS["T4"][2],
            "nvlink": _LINKS["T4"][2],
            "total_memory": "published with driver 580.82.07, and with torch 2.13.0+cu130; older drivers up "
            "to 15109 MiB",
            "max_threads_per_multiprocessor": _THREADS,
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
        name="Tesla V100-SXM2-16GB",
        total_memory=16_928_342_016,
        compute_capability=(7, 0),
        multiprocessors=80,
        max_threads_per_multiprocessor=2048,
        context=379 * MiB,
        l2_cache=6 * MiB,
        bandwidth=900e9,
        host_link=_LINKS["V100-16GB"][0],
        nvlink=_LINKS["V100-16GB"][1],
        peak_flops=_V100_PEAKS,
        sources={
            "host_link": _LINKS["V100-16GB"][2],
            "nvlink": _LINKS["V100-16GB"][2],
            "total_memory": _DEVICE_QUERY.format("12.4") + "; 16,945,512,448 B with drivers up to CUDA 11",
            "max_threads_per_multiprocessor": _THREADS,
            "context": _V100_CONTEXT,
            "l2_cache": _DEVICE_QUERY.format("9.0"),
            "bandwidth": "NVIDIA V100 datasheet (SXM2)",
            "peak_flops": "NVIDIA Tesla V100 architecture whitepaper (SXM2)",
            "hardware": _DEVICE_QUERY.format("12.4"),
        },
    ),
    Spec(
        key="V100-32GB",
        name="Tesla V100-SXM2-32GB",
        total_memory=34_072_559_616,
        compute_capability=(7, 0),
        multiprocessors=80,
        max_threads_per_multiprocessor=2048,
        context=379 * MiB,
        l2_cache=6 * MiB,
        bandwidth=900e9,
        host_link=_LINKS["V100-32GB"][0],
        nvlink=_LINKS["V100-32GB"][1],
        peak_flops=_V100_PEAKS,
        sources={
            "host_link": _LINKS["V100-32GB"][2],
            "nvlink": _LINKS["V100-32GB"][2],
            "total_memory": _DEVICE_QUERY.format("12.9") + "; 34,089,730,048 B with CUDA 11.4's",
            "max_threads_per_multiprocessor": _THREADS,
            "context": _V100_CONTEXT,
            "l2_cache": _DEVICE_QUERY.format("9.0") + ", of the 16 GB model",
            "bandwidth": "NVIDIA V100 datasheet (SXM2)",
            "peak_flops": "NVIDIA Tesla V100 architecture whitepaper (SXM2)",
            "hardware": _DEVICE_QUERY.format("12.9"),
        },
    ),
    Spec(
        key="RTX 3090",
        name="NVIDIA GeForce RTX 3090",
        total_memory=25_296_044_032,
        compute_capability=(8, 6),
        multiprocessors=82,
        max_threads_per_multiprocessor=1536,
        context=317 * MiB,
        l2_cache=6 * MiB,
        bandwidth=936e9,
        host_link=_LINKS["RTX 3090"][0],
        nvlink=_LINKS["RTX 3090"][1],
        peak_flops=_tera(float64=35.6 / 64, float32=35.6, tf32=35.6, float16=71, bfloat16=71, int8=284),
        sources={
            "host_link": _LINKS["RTX 3090"][2],
            "nvlink": _LINKS["RTX 3090"][2],
            "total_memory": "published with driver 580.119.02; torch 2.13.0+cu130 says 24124 MiB too; "
            "older drivers up to 24268 MiB, Windows 24575 MiB",
            "max_threads_per_multiprocessor": _THREADS,
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
        name="NVIDIA GeForce RTX 4090",
        total_memory=25_250_627_584,
        compute_capability=(8, 9),
        multiprocessors=128,
        max_threads_per_multiprocessor=1536,
        context=448 * MiB,
        l2_cache=72 * MiB,
        bandwidth=1008e9,
        host_link=_LINKS["RTX 4090"][0],
        nvlink=_LINKS["RTX 4090"][1],
        peak_flops=_tera(float64=82.6 / 64, float32=82.6, tf32=82.6, float16=165.2, bfloat16=165.2, int8=660.6),
        sources={
            "host_link": _LINKS["RTX 4090"][2],
            "nvlink": _LINKS["RTX 4090"][2],
            "total_memory": _DEVICE_QUERY.format("13.0") + "; driver 580.126.20 the same; older drivers up to "
            "24217 MiB, Windows 24563 MiB",
            "max_threads_per_multiprocessor": _THREADS,
            "context": "448 MiB for a second process on the GPU, in an out-of-memory text that names the RTX "
            "4090; two texts by difference: 0.38 and 0.45 GiB",
            "l2_cache": "L2_cache_size as torch prints it",
            "bandwidth": "NVIDIA Ada architecture whitepaper",
            "peak_flops": "NVIDIA Ada architecture whitepaper; " + _FP64.format(64),
            "hardware": _DEVICE_QUERY.format("13.0"),
        },
    ),
    Spec(
        key="A100-40GB",
        name="NVIDIA A100-SXM4-40GB",
        total_memory=42_405_855_232,
        compute_capability=(8, 0),
        multiprocessors=108,
        max_threads_per_multiprocessor=2048,
        context=481 * MiB,
        l2_cache=40 * MiB,
        bandwidth=1555e9,
        host_link=_LINKS["A100-40GB"][0],
        nvlink=_LINKS["A100-40GB"][1],
        peak_flops=_A100_PEAKS,
        sources={
            "host_link": _LINKS["A100-40GB"][2],
            "nvlink": _LINKS["A100-40GB"][2],
            "total_memory": _DEVICE_QUERY.format("13.0") + "; 42,298,834,944 B with CUDA 12.2's",
            "max_threads_per_multiprocessor": _THREADS,
            "context": _A100_CONTEXT,
            "l2_cache": _DEVICE_QUERY.format("13.0"),
            "bandwidth": _A100_DATASHEET,
            "peak_flops": _A100_DATASHEET,
            "hardware": _DEVICE_QUERY.format("13.0"),
        },
    ),
    Spec(
        key="A100-80GB",
        name="NVIDIA A100-SXM4-80GB",
        total_memory=85_093_777_408,
        compute_capability=(8, 0),
        multiprocessors=108,
        max_threads_per_multiprocessor=2048,
        context=481 * MiB,
        l2_cache=40 * MiB,
        bandwidth=2039e9,
        host_link=_LINKS["A100-80GB"][0],
        nvlink=_LINKS["A100-80GB"][1],
        peak_flops=_A100_PEAKS,
        sources={
            "host_link": _LINKS["A100-80GB"][2],
            "nvlink": _LINKS["A100-80GB"][2],
            "total_memory": "published with torch 2.7.1+cu126; the PCIe model's with driver 580.173.02 is "
            "the same; 84,987,740,160 B (CUDA 12.2's driver) to 81251 MiB (older) elsewhere",
            "max_threads_per_multiprocessor": _THREADS,
            "context": _A100_CONTEXT,
            "l2_cache": _DEVICE_QUERY.format("12.2"),
            "bandwidth": _A100_DATASHEET,
            "peak_flops": _A100_DATASHEET,
            "hardware": _DEVICE_QUERY.format("12.2"),
        },
    ),
    Spec(
        key="L4",
        name="NVIDIA L4",
        total_memory=23_659_151_360,
        compute_capability=(8, 9),
        multiprocessors=58,
        max_threads_per_multiprocessor=1536,
        context=211 * MiB,
        l2_cache=48 * MiB,
        bandwidth=300e9,
        host_link=_LINKS["L4"][0],
        nvlink=_LINKS["L4"][1],
        peak_flops=_tera(float64=30.3 / 64, float32=30.3, tf32=60, float16=121, bfloat16=121, int8=242.5),
        sources={
            "host_link": _LINKS["L4"][2],
            "nvlink": _LINKS["L4"][2],
            "total_memory": "published with torch 2.11.0+cu130 and driver 580.82.07; 22518 MiB (CUDA 12.0's "
            "driver) to 22693 MiB elsewhere",
            "max_threads_per_multiprocessor": _THREADS,
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
        key="H100",
        name="NVIDIA H100 80GB HBM3",
        total_memory=85_017_755_648,
        compute_capability=(9, 0),
        multiprocessors=132,
        max_threads_per_multiprocessor=2048,
        context=666 * MiB,
        l2_cache=50 * MiB,
        bandwidth=3350e9,
        host_link=_LINKS["H100"][0],
        nvlink=_LINKS["H100"][1],
        peak_flops=_HOPPER_PEAKS,
        sources={
            "host_link": _LINKS["H100"][2],
            "nvlink": _LINKS["H100"][2],
            "total_memory": _DEVICE_QUERY.format("13.0") + "; 85,028,896,768 B with CUDA 12.8's",
            "max_threads_per_multiprocessor": _THREADS,
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
        name="NVIDIA H200",
        total_memory=150_110_011_392,
        compute_capability=(9, 0),
        multiprocessors=132,
        max_threads_per_multiprocessor=2048,
        context=594 * MiB,
        l2_cache=60 * MiB,
        bandwidth=4800e9,
        host_link=_LINKS["H200"][0],
        nvlink=_LINKS["H200"][1],
        peak_flops=_HOPPER_PEAKS,
        sources={
            "host_link": _LINKS["H200"][2],
            "nvlink": _LINKS["H200"][2],
            "total_memory": "published, in the allocator's own warning; torch prints 143156 MB; 139.72 to "
            "139.81 GiB in out-of-memory texts",
            "max_threads_per_multiprocessor": _THREADS,
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
        name="NVIDIA B200",
        total_memory=191_503_007_744,
        compute_capability=(10, 0),
        multiprocessors=148,
        max_threads_per_multiprocessor=2048,
        context=712 * MiB,
        l2_cache=253 * MiB // 2,
        bandwidth=8000e9,
        host_link=_LINKS["B200"][0],
        nvlink=_LINKS["B200"][1],
        peak_flops=_tera(float64=40, float32=80, tf32=1100, float16=2250, bfloat16=2250, int8=4500),
        sources={
            "host_link": _LINKS["B200"][2],
            "nvlink": _LINKS["B200"][2],
            "total_memory": "published with torch 2.13.0+cu130; torch prints 182631 MB",
            "max_threads_per_multiprocessor": "device query in pytorch/ao pull request 4002",
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

# Further names, as torch or people write them; `_plain` is applied to each.
_ALSO = {
    "T4": ("T4-16GB",),
    "V100-16GB": ("Tesla V100-PCIE-16GB",),
    "V100-32GB": ("Tesla V100-PCIE-32GB",),
    "RTX 3090": ("3090",),
    "RTX 4090": ("4090",),
    "A100-40GB": ("A100-SXM-40GB", "NVIDIA A100-PCIE-40GB"),
    "A100-80GB": ("A100-SXM-80GB", "NVIDIA A100 80GB PCIe"),
    "L4": ("L4-24GB",),
    "H100": ("H100-80GB", "H100-SXM", "H100-SXM5", "H100-SXM5-80GB"),
    "H200": ("H200-141GB", "H200-SXM"),
    "B200": ("B200-180GB", "B200-192GB"),
}
_KEYS = {_plain(name): each.key for each in _ALL for name in (each.key, each.name, *_ALSO[each.key])}
