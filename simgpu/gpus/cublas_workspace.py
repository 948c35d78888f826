"""Sizes of the workspaces that PyTorch gives cuBLAS and cuBLASLt."""

import os
import re
import warnings
from collections.abc import Mapping

KIB = 2**10


def cublas_workspace_bytes(
    compute_capability: tuple[int, int],
    torch_version: tuple[int, int] = (2, 13),
    environ: Mapping[str, str] | None = None,
) -> int:
    """Returns the bytes of the workspace that PyTorch allocates for a cuBLAS handle on one stream.

    The default is 8,519,680 B (8.125 MiB, written ":4096:2:16:8" in cuBLAS's notation) or 33,554,432 B (32 MiB,
    ":4096:8"), by compute capability (major, minor) and version of torch (major, minor). The environment variable
    CUBLAS_WORKSPACE_CONFIG, read from `environ` (`os.environ` if None), replaces the default by the sum of its
    `:SIZE:COUNT` pairs, with SIZE in KiB; ":0:0" means no workspace. A value without such a pair is ignored with
    PyTorch's UserWarning.

    Raises ValueError for torch older than 2.0, whose sizes were not looked up.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize. The sizes and the parsing of
    CUBLAS_WORKSPACE_CONFIG agree with PyTorch's CUDA host code under stub libraries: the defaults in 2.11.0, 2.12.1,
    2.13.0, 2.14.1, 2.15.0, the environment variable in 2.13.0.
    """
    if torch_version < (2, 0):
        raise ValueError(
            f"cuBLAS workspaces are known for torch 2.0 and later, not {'.'.join(map(str, torch_version))}"
        )
    default = _default_bytes(compute_capability[0], torch_version)
    config = (os.environ if environ is None else environ).get("CUBLAS_WORKSPACE_CONFIG")
    if config is None:
        return default
    # Searched, not matched, because text around and between the pairs is ignored.
    pairs = re.findall(r":([0-9]+):([0-9]+)", config)
    if not pairs:
        warnings.warn(
            f"Could not parse CUBLAS_WORKSPACE_CONFIG, using default workspace size of {default} bytes.",
            stacklevel=2,
        )
        return default
    return sum(int(size) * KIB * int(count) for size, count in pairs)


def keeps_blas_workspace(torch_version: tuple[int, int], environ: Mapping[str, str]) -> bool:
    """Returns whether PyTorch keeps a cuBLAS workspace for the next matmul.

    From 2.15 on each matmul allocates its workspace and frees it, unless TORCH_CUBLAS_WORKSPACE_CACHE is 1.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp, isCUDABlasWorkspaceCachingEnabled; it agrees with PyTorch's CUDA
    host code under stub libraries in 2.15.0.
    """
    return torch_version < (2, 15) or environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def lt_workspace_bytes(
    compute_capability: tuple[int, int], torch_version: tuple[int, int], environ: Mapping[str, str]
) -> int | None:
    """Returns the bytes of cuBLASLt's own workspace, or None if it shares that of cuBLAS.

    If workspaces are kept, it shares that of cuBLAS from torch 2.12 on unless TORCH_CUBLASLT_UNIFIED_WORKSPACE is 0,
    and before 2.12 only if that is 1. If each matmul allocates its own workspace (2.15), it never shares. The size of
    its own workspace is CUBLASLT_WORKSPACE_SIZE in KiB, by default 1 MiB. One that is kept is at most as large as
    cuBLAS's, unless TORCH_CUBLASLT_UNIFIED_WORKSPACE is 0.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp, getCUDABlasLtWorkspaceSize; it agrees with PyTorch's CUDA host code
    under stub libraries in 2.11.0, 2.13.0 and 2.15.0.
    """
    shared, kept = environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE"), keeps_blas_workspace(torch_version, environ)
    if kept and (shared == "1" or (shared != "0" and torch_version >= (2, 12))):
        return None
    wanted = re.match(r"\s*\+?(\d+)", environ.get("CUBLASLT_WORKSPACE_SIZE", ""))  # text after the digits is ignored
    size = int(wanted[1]) * KIB if wanted else 1024 * KIB
    if shared == "0" or not kept:
        return size
    return min(size, cublas_workspace_bytes(compute_capability, torch_version, environ))


def _default_bytes(major: int, torch_version: tuple[int, int]) -> int:
    """Returns the bytes of the default workspace on compute capability `major`.x."""
    if torch_version >= (2, 14):
        large = major >= 9
    elif torch_version >= (2, 12):
        large = major in (9, 10, 12)  # 11.x (Thor) was not included until 2.14
    else:
        large = major == 9
    return 8 * 4096 * KIB if large else 2 * 4096 * KIB + 8 * 16 * KIB
