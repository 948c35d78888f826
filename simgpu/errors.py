"""The errors of the simulated GPU that a real one does not have, and those that a real one says in other words."""

import re
from functools import wraps

import torch

from simgpu.memory.invalid_free import InvalidFree


class NotModelledError(NotImplementedError):
    """Something of CUDA that the simulated GPU does not model; the message names it."""


OTHER_ENGINE = (
    "PyTorch's own CUDA code does, without a GPU: run the program with `simgpu run --engine stub`, which needs Linux "
    "on x86-64"
)
"""What to do about code that only a CUDA build runs."""


NESTED = (
    "the simulated GPU does not model nested tensors of strided layout: make them with layout=torch.jagged, or pad "
    f"them and give a mask. {OTHER_ENGINE}"
)


class CaptureError(torch.AcceleratorError):
    """CUDA's error of something that a CUDA graph cannot hold."""

    @classmethod
    def of(cls, text: str, name: str) -> "CaptureError":
        """With CUDA's text, and the name of its error behind `cudaErrorStreamCapture`."""
        return cls(
            f"CUDA error: {text}\nSearch for `cudaErrorStreamCapture{name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
            "group__CUDART__TYPES.html for more information."
        )


def as_cuda_error(error: InvalidFree) -> Exception:
    """What a program gets of PyTorch for it: CUDA's error, or none that is known."""
    if error.inside:
        return torch.AcceleratorError(
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
    """A value was asked of a simulated tensor, which has none, and NaN would not do."""


class HostMemoryError(MemoryError):
    """The values of all tensors, which were asked for, do not fit into the host's memory."""


_TYPE = re.compile(r"\[Meta(\w+)Type \[")


# Dtypes that have a type of their own in Python; those of later have PyTorch's own name.
_OF_OLD = {"Half", "Float", "Double", "Byte", "Char", "Short", "Int", "Long"}


def _cuda_type(found: re.Match) -> str:
    return f"[torch.cuda.{found[1]}Tensor [" if found[1] in _OF_OLD else f"[CUDA{found[1]}Type ["


_DEVICE_TYPE = re.compile(r"(device type:? '?)meta\b")
_DEVICE = re.compile(r"(?<![\w.-])meta(?![\w.-]| tensors?\b)")  # "it's on meta", 'device "meta"'; not "meta tensor"


def in_cuda_words(message: str, device: str = "cuda:0") -> str:
    """A message of PyTorch's about a simulated tensor: where it says that the device is meta, it is CUDA's."""
    return _DEVICE.sub(device, _DEVICE_TYPE.sub(r"\1cuda", message))


def naming_cuda_types(run):
    """torch.autograd._engine_run_backward (`run` is PyTorch's own): an error names a tensor's type on CUDA.

    A saved tensor that was changed in place is reported with its type (torch/csrc/autograd/saved_variable.cpp,
    SavedVariable::unpack), "[torch.cuda.FloatTensor [4, 4]]" on a GPU.
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
    """A method of PyTorch's that asks no mode: an error of it names the device of a simulated tensor as CUDA's."""

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
