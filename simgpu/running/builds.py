"""Advice where an import fails: torchvision and torchaudio of a CUDA build with a CPU build of torch, Triton, and CUDA
extensions that are compiled where they are installed."""

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

_COMPILED = re.compile(r"\b(flash[_-]attn(?:_interface)?|causal[_-]conv1d|mamba[_-]ssm|apex)\b")
"""Extensions of which PyPI has the source alone (2026-11); NVIDIA's apex is not there at all."""
COMPILED = (
    "{name} is compiled where it is installed, with CUDA's compiler (nvcc), because PyPI has no wheel of it. A build "
    "for this version of PyTorch loads on the stub engine; without one, choose what the program offers in its place"
)


def advice(error: BaseException | None) -> str:
    """Says in one line what to do where an error, or one behind it, comes from a CUDA build of a library, or from the
    import of Triton or of an extension that is not installed; "" otherwise."""
    cpu_build = not list((Path(torch.__file__).parent / "lib").glob("*torch_cuda*"))
    while error is not None:
        if _misses_triton(error):
            return TRITON
        if name := _missing_extension(error):
            return COMPILED.format(name=name)
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


def _missing_extension(error: BaseException) -> str:
    """The extension that an import failed for, by Python's error or by a library's own; "" if it is none of these."""
    if not isinstance(error, ImportError):
        return ""
    found = _COMPILED.match((error.name or "").partition(".")[0]) if error.name else _COMPILED.search(str(error))
    return found[1] if found else ""


def _library(error: BaseException) -> str:
    """Which of the two an error went through, by its traceback."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        match = re.search(r"[\\/](torchvision|torchaudio)[\\/]", trace.tb_frame.f_code.co_filename)
        found = match[1] if match else found
        trace = trace.tb_next
    return found
