"""The GPUs that can be simulated, from simgpu/data/gpus.json, and what all GPUs of a compute capability share."""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from simgpu.gpus.cublas_workspace import cublas_workspace_bytes

if TYPE_CHECKING:
    from importlib.abc import Traversable

# Properties shared by all GPUs of a compute capability: threads and shared memory of a multiprocessor.
# Source: CUDA C++ Programming Guide, technical specifications per compute capability.

KIB = 2**10


class Capability(NamedTuple):
    """Holds the properties of a compute capability.

    max_threads: threads per multiprocessor. shared_memory: bytes per multiprocessor. shared_memory_per_block: the most
    bytes that one thread block may request (cudaDevAttrMaxSharedMemoryPerBlockOptin).
    """

    max_threads: int
    shared_memory: int
    shared_memory_per_block: int


CAPABILITIES: dict[tuple[int, int], Capability] = {
    (7, 0): Capability(2048, 96 * KIB, 96 * KIB),
    (7, 5): Capability(1024, 64 * KIB, 64 * KIB),
    (8, 0): Capability(2048, 164 * KIB, 163 * KIB),
    (8, 6): Capability(1536, 100 * KIB, 99 * KIB),
    (8, 9): Capability(1536, 100 * KIB, 99 * KIB),
    (9, 0): Capability(2048, 228 * KIB, 227 * KIB),
    (10, 0): Capability(2048, 228 * KIB, 227 * KIB),
    (12, 0): Capability(1536, 100 * KIB, 99 * KIB),
}


# The GPUs that can be simulated, from simgpu/data/gpus.json: names, memory, multiprocessors, context, links, rates.
# To add a GPU, add it to that file (CONTRIBUTING.md, "A GPU"); what all GPUs of its compute capability share is in
# `capabilities`. Every figure names its source in `sources`. In the file, `host_link` and `network` are names of
# `LINKS`, and `peak_flops` is in 10¹² operations per second. The following holds for all of them:
# - `total_memory` depends on the driver, by up to 2 %: newer drivers reserve more for themselves. The figure here is
#   that of drivers of CUDA 13.0 (R580), which torch 2.13's default wheels (cu130) need, if it is published. Otherwise,
#   and for V100, which those wheels no longer support, it is the newest published one.
# - `context` is everything a process holds outside PyTorch's allocator: the CUDA context, the kernels loaded so far,
#   the handles of cuBLAS and cuDNN. With lazy loading (CUDA_MODULE_LOADING=LAZY, torch's default since 1.13) it grows
#   as kernels are first used, so it is not constant; processes differ by ±0.1 GiB. Most figures are derived: PyTorch's
#   out-of-memory message gives what the process uses, what PyTorch has allocated and what it has reserved in addition,
#   each rounded to 0.01 GiB. The context is the difference.
# - `peak_flops` is dense (no sparsity), counts multiply and add as two operations, has fp32 accumulation for float16,
#   and uses Tensor Cores if they support the type.

__all__ = ["SPECS", "Spec", "cublas_workspace_bytes", "spec"]


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
    also: tuple[str, ...]
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


# Peak bytes/s in each direction, by the names that gpus.json has for them.
LINKS = {
    # PCIe, 16 lanes: 8, 16 and 32 GT/s per lane with 128b/130b encoding
    **{f"PCIe {generation}.0 x16": 16 * rate * 1e9 / 8 * 128 / 130 for generation, rate in ((3, 8), (4, 16), (5, 32))},
    # InfiniBand, 4 lanes: 100, 200 and 400 Gb/s; "EDR / 2" is one port for two GPUs
    **{name: gigabits * 1e9 / 8 for name, gigabits in (("EDR / 2", 50), ("HDR", 200), ("NDR", 400))},
}


def load(path: "Traversable") -> Mapping[str, Spec]:
    """Returns the GPUs of a JSON file by their keys, in its order.

    Raises ValueError, which names the GPU, for a missing or unknown field, an unknown link, or a figure without source.
    """
    found = {}
    for key, row in json.loads(path.read_text(encoding="utf-8")).items():
        if set(row) != _FIELDS:
            raise ValueError(f"{path}: {key}: wanted the fields {sorted(_FIELDS)}, not {sorted(row)}")
        if set(row["sources"]) != _SOURCES or not all(row["sources"].values()):
            raise ValueError(f"{path}: {key}: wanted a source for each of {sorted(_SOURCES)}")
        for unknown in {row["host_link"], row["network"]} - {0, *LINKS}:
            raise ValueError(f"{path}: {key}: wanted one of the links {list(LINKS)}, not {unknown!r}")
        row |= {link: LINKS.get(row[link], 0) for link in ("host_link", "network")}
        row |= {name: tuple(row[name]) for name in ("also", "compute_capability")}
        row["peak_flops"] = MappingProxyType({dtype: rate * 1e12 for dtype, rate in row["peak_flops"].items()})
        found[key] = Spec(key, **row)
    return MappingProxyType(found)


_FIELDS = {each.name for each in fields(Spec)} - {"key"}
_SOURCES = {"total_memory", "context", "l2_cache", "bandwidth", "peak_flops", "links", "hardware"}
FILE = files("simgpu") / "data" / "gpus.json"  # the playground reads it from an archive
SPECS = load(FILE)
_KEYS = {_plain(name): each.key for each in SPECS.values() for name in (each.key, each.name, *each.also)}
