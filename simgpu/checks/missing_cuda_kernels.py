"""Operators that only the CPU has, which CUDA refuses although meta tensors would accept them.

PyTorch's own list of kernels says which these are, native_functions.yaml, which every build of torch contains for
torchgen. They are the functions with a kernel for the CPU, and none for CUDA, for quantized CUDA tensors or for any
device. Of these, torch 2.13's CUDA build has no kernel either (`_dispatch_has_computed_kernel_for_dispatch_key`).
"""

from functools import cache
from pathlib import Path

import torchgen

FILE = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"


@cache
def missing_kernels() -> dict[str, str]:
    """Returns the functions that CUDA cannot run, by the name of the kernel that is missing: its own or its delegate's.

    It is empty where the installed torch has no native_functions.yaml.
    """
    keys: dict[str, set[str]] = {}
    delegates: dict[str, str] = {}
    name, in_dispatch = "", False
    for line in FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else ():
        if line.startswith("- func: "):
            name = line.removeprefix("- func: ").partition("(")[0]
            keys[name] = set()
        elif line.startswith("  structured_delegate: "):
            delegates[name] = line.partition(":")[2].strip()
        if line.startswith("    ") and in_dispatch:
            keys[name].update(key.strip() for key in line.partition(":")[0].split(","))
        else:
            in_dispatch = line.startswith("  dispatch:")
    found = {}
    for name, own in keys.items():
        kernel = delegates.get(name, name)
        has = own | keys[kernel]
        if "CPU" in has and not any(key in ("CUDA", "QuantizedCUDA") or key.startswith("Composite") for key in has):
            found[f"aten::{name}"] = f"aten::{kernel}"
    return found


def missing(operator) -> str | None:
    """Returns the name of the overload without a CUDA kernel because of which CUDA cannot run `operator`, or None."""
    return missing_kernels().get(operator.name())


def error(name: str) -> NotImplementedError:
    """Returns PyTorch's error for an overload without a CUDA kernel, with only the first entry of its list of
    backends.
    """
    return NotImplementedError(
        f"Could not run '{name}' with arguments from the 'CUDA' backend. This could be because the operator doesn't "
        "exist for this backend, or was omitted during the selective/custom build process (if using custom build). If "
        "you are a Facebook employee using PyTorch on mobile, please visit https://fburl.com/ptmfixes for possible "
        f"resolutions. '{name}' is only available for these backends: [CPU, ...]."
    )
