"""Advice where an import fails: torchvision and torchaudio of a CUDA build with a CPU build of torch, and Triton."""

import importlib.machinery
import re
from pathlib import Path

import torch

from simgpu.errors import OTHER_ENGINE

INDEX = "https://download.pytorch.org/whl/cpu"
"""Where PyTorch publishes the CPU builds (pytorch.org, "Get started"); PyPI has the CUDA builds for Linux."""

_SIGNS = (
    re.compile(r"operator (torchvision|torchaudio)::\w+ does not exist"),
    re.compile(
        r"()(?:libtorch_cuda|libc10_cuda|libcudart|libnvrtc|libcublas|libcudnn)[\w.-]*: cannot open shared object"
    ),
    re.compile(r"Couldn't load custom C\+\+ ops.*?(torchvision|torchaudio)?", re.DOTALL),
)


TRITON = f"Triton is not installed, and the simulated GPU does not run its kernels. {OTHER_ENGINE}; it brings Triton"


def advice(error: BaseException | None) -> str:
    """Says in one line what to do where an error, or one behind it, comes from a CUDA build of a library, or from the
    import of Triton where it is not installed; "" otherwise."""
    cpu_build = not list((Path(torch.__file__).parent / "lib").glob("*torch_cuda*"))
    while error is not None:
        if _misses_triton(error):
            return TRITON
        for sign in _SIGNS if cpu_build else ():
            found = sign.search(str(error))
            if found is not None:
                name = found[1] or _library(error)
                return (
                    f"{name or 'a library'} is a CUDA build, which does not load with the CPU build of torch: "
                    f"pip install --force-reinstall --no-deps --index-url {INDEX} {name or 'torchvision torchaudio'}"
                )
        error = error.__cause__ or error.__context__
    return ""


def _misses_triton(error: BaseException) -> bool:
    """Returns whether an import failed because Triton is missing, by Python's error or by a library's own."""
    if not isinstance(error, ImportError) or importlib.machinery.PathFinder.find_spec("triton") is not None:
        return False
    return (error.name or "").partition(".")[0] == "triton" or re.search(r"\btriton\b", str(error), re.I) is not None


def _library(error: BaseException) -> str:
    """Which of the two an error went through, by its traceback."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        match = re.search(r"[\\/](torchvision|torchaudio)[\\/]", trace.tb_frame.f_code.co_filename)
        found = match[1] if match else found
        trace = trace.tb_next
    return found
