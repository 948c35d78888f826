"""Replaces what PyTorch reports about its build by the values of the CUDA wheel (torch 2.13 on PyPI).

Scripts and libraries decide by these whether they may use the GPU, tf32 or NCCL.
"""

import sys
import types
from unittest import mock

import torch
import torch.torch_version

from simgpu.patches import Patches

INSTALLED = torch.__version__
"""The installed version of PyTorch, also while a simulated GPU is on."""
OF_CUDA = "only a build for CUDA has it"
"""Why a name that is replaced need not exist."""
CUDA = "13.0"
CUDNN = 92000
NCCL = (2, 29, 7)
CUSPARSELT = 801
ARCHITECTURES = (75, 80, 86, 90, 100, 120)
_GENCODE = ";".join(f"-gencode;arch=compute_{one},code=sm_{one}" for one in ARCHITECTURES)
_LINES = (
    "CUDA Runtime 13.0",
    f"NVCC architecture flags: {_GENCODE}",
    "CuDNN 92.0",
    "Magma 2.6.1",
)
_SETTINGS = {
    "CXX_COMPILER=": "CUDA_VERSION=13.0, CUDNN_VERSION=9.20.0, CXX_COMPILER=",
    "USE_CUDA=0": "USE_CUDA=1",
    "USE_CUDNN=OFF": "USE_CUDNN=ON",
    "USE_CUSPARSELT=OFF": "USE_CUSPARSELT=1",
    "USE_NCCL=OFF": "USE_NCCL=ON",
}
"""Settings that the wheels of torch 2.13.0 report without CUDA, and their replacements with it.

(from PyTorch's CUDA host code under stub libraries)
"""


def patch(patches: Patches) -> None:
    """Replaces the values in torch."""
    version = torch.torch_version.TorchVersion(f"{INSTALLED.partition('+')[0]}+cu{CUDA.replace('.', '')}")
    names = {
        torch: {"__version__": version},
        torch.version: {"__version__": str(version), "cuda": CUDA},
        torch._C: {
            **dict.fromkeys(("_has_cuda", "_has_cudnn", "_has_cusparselt", "_has_magma"), True),
            "_cudnn": _cudnn(),
            "_show_config": shown(torch._C._show_config()),
        },
        torch.backends.cusparselt: {"version": lambda: CUSPARSELT, "is_available": lambda: True},
    }
    extensions = sys.modules.get("torch.utils.cpp_extension")
    if extensions is not None:
        # it logs whether a GPU is there, which only the program may ask: CUDA_VISIBLE_DEVICES is read then
        with mock.patch.object(torch.cuda, "is_available", return_value=True):
            names[extensions] = {"CUDA_HOME": extensions._find_cuda_home()}
    for owner, values in names.items():
        for name, value in values.items():
            patches.apply(owner, name, value, new=OF_CUDA if name == "_cudnn" else "")


def shown(config: str):
    """Returns torch._C._show_config, which torch.__config__.show() prints; `config` is the installed PyTorch's."""
    head, capability, rest = config.partition("  - CPU capability usage: ")
    usage, _, rest = rest.partition("\n")
    for setting, with_cuda in _SETTINGS.items():
        rest = rest.replace(setting, with_cuda)
    lines = "".join(f"  - {line}\n" for line in _LINES)
    text = f"{head}{capability}{usage}\n{lines}{rest}"
    return lambda: text


def _cudnn() -> types.ModuleType:
    """Returns a module for torch._C._cudnn."""
    module = types.ModuleType("torch._C._cudnn")
    numbers = CUDNN // 10000, CUDNN % 10000 // 100, CUDNN % 100
    vars(module).update(
        is_cuda=True,
        getVersionInt=lambda: CUDNN,
        getRuntimeVersion=lambda: numbers,
        getCompileVersion=lambda: numbers,
    )
    return module
