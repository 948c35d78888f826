"""Errors that only the simulated GPU raises, and CUDA's errors in CUDA's own words."""

import re
from functools import wraps

import torch

from simgpu.allocator.out_of_memory import InvalidFree


class NotModelledError(NotImplementedError):
    """Raised for a part of CUDA that the simulated GPU does not model; the message names it."""


OTHER_ENGINE = (
    "PyTorch's own CUDA code does, without a GPU: run the program with `simgpu run --engine stub`, which needs Linux "
    "on x86-64"
)
"""Advice for code that only a CUDA build runs."""


NESTED = (
    "the simulated GPU does not model nested tensors of strided layout: make them with layout=torch.jagged, or pad "
    f"them and give a mask. {OTHER_ENGINE}"
)


CUDAError: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
"""What PyTorch raises for an error of CUDA. Before torch 2.8, whose programs the stub engine runs, it has no class of
its own."""


class CaptureError(CUDAError):
    """CUDA's error for an operation that a CUDA graph cannot contain."""

    @classmethod
    def of(cls, text: str, name: str) -> "CaptureError":
        """Returns the error with CUDA's text; `name` is its error's name after `cudaErrorStreamCapture`."""
        return cls(
            f"CUDA error: {text}\nSearch for `cudaErrorStreamCapture{name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
            "group__CUDART__TYPES.html for more information."
        )


def as_cuda_error(error: InvalidFree) -> Exception:
    """Converts an invalid free to what PyTorch raises: CUDA's error, or NotModelledError if PyTorch's is unknown."""
    if error.inside:
        return CUDAError(
            "CUDA error: invalid argument\nSearch for `cudaErrorInvalidValue' in https://docs.nvidia.com/cuda/"
            "cuda-runtime-api/group__CUDART__TYPES.html for more information."
        )
    return NotModelledError(
        "max_split_size_mb was lowered while a segment was split, and PyTorch now gives this segment back to CUDA with "
        "blocks in use; what follows is undefined. Set max_split_size_mb before the first allocation"
    )


REMEDY = (
    "simulated_gpu(..., values=True) computes all values on the CPU beside the simulation, for models that fit into "
    "the host's memory"
)
LOST = (
    "values=True, which is on, computes them beside the simulation, but for operators that the CPU does not compute: a "
    "warning has named the one that this was made of"
)


class NoValueError(RuntimeError):
    """Raised when a program needs a value of a simulated tensor that has none, and NaN cannot replace it."""


class HostMemoryError(MemoryError):
    """Raised when values are requested and those of all tensors don't fit into the host's memory."""


_TYPE = re.compile(r"\[Meta(\w+)Type \[")


# Dtypes with a tensor type of their own in Python; newer ones are printed with PyTorch's own name.
_OF_OLD = {"Half", "Float", "Double", "Byte", "Char", "Short", "Int", "Long"}


def _cuda_type(found: re.Match) -> str:
    return f"[torch.cuda.{found[1]}Tensor [" if found[1] in _OF_OLD else f"[CUDA{found[1]}Type ["


_DEVICE_TYPE = re.compile(r"(device type:? '?)meta\b")
_DEVICE = re.compile(r"(?<![\w.-])meta(?![\w.-]| tensors?\b)")  # "it's on meta", 'device "meta"'; not "meta tensor"


def in_cuda_words(message: str, device: str = "cuda:0") -> str:
    """Returns PyTorch's message about a simulated tensor with the device meta replaced by CUDA's."""
    return _DEVICE.sub(device, _DEVICE_TYPE.sub(r"\1cuda", message))


def naming_cuda_types(run):
    """Wraps torch.autograd._engine_run_backward (`run`), so that its errors name a tensor's type on CUDA.

    PyTorch reports a saved tensor that was changed in place with its type (torch/csrc/autograd/saved_variable.cpp,
    SavedVariable::unpack), which is "[torch.cuda.FloatTensor [4, 4]]" on a GPU.
    """

    @wraps(run)
    def run_backward(*args, **kwargs):
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            said = in_cuda_words(_TYPE.sub(_cuda_type, str(error)))
            if said == str(error):
                raise
            raise RuntimeError(said) from None

    return run_backward


def naming_cuda(method):
    """Wraps a method of PyTorch that calls no mode, so that its errors name a simulated tensor's device as CUDA's."""

    @wraps(method)
    def call(*args, **kwargs):
        try:
            return method(*args, **kwargs)
        except RuntimeError as error:
            said = in_cuda_words(str(error))
            if type(error) is not RuntimeError or said == str(error):
                raise
            raise RuntimeError(said) from None

    return call
