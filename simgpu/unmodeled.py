"""Records what a simulated GPU's figures exclude, and warns by name when it first occurs.

Every operator that a program runs is in one of three groups. It is proved if it was compared with PyTorch's own host
code and the result was equal; `simgpu/data/operators.json` lists these, generated from the comparisons. It is excluded
if its memory is unknown without a GPU (a library's workspace) or if it was never compared. Or it is refused with an
error.
"""

import json
import sys
import warnings
from functools import cache
from pathlib import Path

import torch

from simgpu.tracebacks import PATHS

OPERATORS = Path(__file__).parent / "data" / "operators.json"

CUDNN = "cuDNN's workspaces"
CUDNN_ATTENTION = "the workspaces of cuDNN's attention"
CUFFT = "cuFFT's workspaces"
CUSPARSE = "cuSPARSE's buffers"
SOLVERS = "the workspaces of cuSOLVER and of cuBLAS's batched solvers"
POLYNOMIAL = "the intermediate matrices of linalg_matrix_exp"
CUDNN_RNN = "cuDNN's RNN"
COMPILING = "what compiling saves or adds"
NCCL = "NCCL's own buffers"
WATCHDOG = "when NCCL's watchdog frees its tensors"
UNCOMPARED = "all memory but its outputs"
WHY = {
    CUDNN: "their sizes are known only on a GPU; with torch.backends.cudnn.enabled = False, nothing is missing",
    CUDNN_ATTENTION: "their sizes are known only on a GPU; torch.backends.cuda.enable_cudnn_sdp(False) selects a "
    "different kernel, of which nothing is missing",
    CUFFT: "their sizes are known only on a GPU",
    CUSPARSE: "their sizes are known only on a GPU",
    SOLVERS: "their sizes are known only on a GPU",
    POLYNOMIAL: "their number depends on the matrix's norm, which is a value",
    CUDNN_RNN: "its memory is known only on a GPU; PyTorch's own RNN runs instead, as with cudnn.enabled = False",
    COMPILING: "compiled functions run eagerly here and allocate as eager code does; with inductor, their time is an "
    "estimate from the kernels that it would fuse",
    NCCL: "they do not come from PyTorch's allocator, so only nvidia-smi shows them; from 0.5 GiB for one communicator "
    "to several GiB for a few are reported (NVIDIA/nccl, issues 964, 864, 1685, 2363)",
    WATCHDOG: "it looks every 0.1 s; here the first collective after the backward pass frees them, and on a GPU with "
    "shorter steps they accumulate",
    UNCOMPARED: "the operator was not compared with CUDA",
}
# CUDA operators that allocate a library's workspace, by name without overload.
LIBRARIES = {
    CUFFT: ("_fft_r2c", "_fft_c2r", "_fft_c2c"),
    SOLVERS: (
        "_cholesky_solve_helper",
        "_linalg_det",
        "_linalg_eigh",
        "_linalg_eigvals",
        "_linalg_slogdet",
        "_linalg_solve_ex",
        "_linalg_svd",
        "cholesky",
        "cholesky_inverse",
        "cholesky_solve",
        "geqrf",
        "linalg_cholesky_ex",
        "linalg_eig",
        "linalg_eigvals",
        "linalg_householder_product",
        "linalg_inv_ex",
        "linalg_ldl_factor_ex",
        "linalg_ldl_solve",
        "linalg_lstsq",
        "linalg_lu",
        "linalg_lu_factor_ex",
        "linalg_lu_solve",
        "linalg_qr",
        "ormqr",
    ),
    POLYNOMIAL: ("linalg_matrix_exp",),
    CUDNN_ATTENTION: ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward"),
    CUDNN: (
        "_cudnn_ctc_loss",
        "_cudnn_rnn",
        "_cudnn_rnn_backward",
        "cudnn_affine_grid_generator",
        "cudnn_batch_norm",
        "cudnn_batch_norm_backward",
        "cudnn_convolution",
        "cudnn_convolution_transpose",
    ),
}
_LIBRARY_OF = {f"aten::{name}": library for library, names in LIBRARIES.items() for name in names}


class IncompleteEstimateWarning(UserWarning):
    """Warns that a simulated GPU's figures exclude something, which the message names."""


# These compare shapes or read a flag on the host, and have no kernel (aten/src/ATen/native/TensorProperties.cpp).
_ASK = {"aten::is_same_size"}


@cache
def proved() -> frozenset[str]:
    """Returns the operators that were compared with PyTorch's own host code and found equal: "aten::add.Tensor"."""
    return frozenset(json.loads(OPERATORS.read_text(encoding="utf-8"))["proved"])


@cache
def differing() -> dict[str, str]:
    """Returns the operators that differed in at least one sample of the comparison, with what differs."""
    return json.loads(OPERATORS.read_text(encoding="utf-8"))["differs"]


@cache
def reason(operator: torch._ops.OpOverload) -> str | None:
    """Returns what an operator's figures exclude, or None if they were proved to be complete."""
    name = operator.name()
    library = _LIBRARY_OF.get(operator._schema.name)
    if library is not None:
        return library
    if name in differing():
        return f"some memory in some cases: {differing()[name]}"
    if name not in proved() and name not in _ASK:
        return UNCOMPARED
    return None


def coverage(operator: str | torch._ops.OpOverload) -> str:
    """Returns what is known of an operator, given as "aten::add.Tensor" or torch.ops.aten.add.Tensor.

    The result is "proved", or "excluded: " and the reason. Raises ValueError for a name that is not an operator's.
    """
    if isinstance(operator, str):
        operator = _named(operator)
    why = reason(operator)
    return "proved" if why is None else f"excluded: {explained(why)}"


def explained(what: str) -> str:
    """Returns what is excluded, with the reason if one is known."""
    return f"{what} ({WHY[what]})" if what in WHY else what


def _named(name: str) -> torch._ops.OpOverload:
    namespace, _, rest = name.rpartition("::")
    packet, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), overload or "default")
    except AttributeError:
        raise ValueError(f"{name!r} is not an operator of this torch; wanted a name like 'aten::add.Tensor'") from None


class Unmodeled:
    """Holds what one simulated GPU's figures exclude: names and reasons, in the order in which they occurred."""

    def __init__(self, gpu: str):
        self.gpu = gpu
        self._reasons: dict[str, str] = {}
        self.lower_bound = True
        self._seen: set = set()
        self._said: set[str] = set()
        self._beside: dict[str, str] = {}

    def ran(self, operator) -> None:
        """Records an operator that runs on the GPU."""
        if operator in self._seen:
            return
        self._seen.add(operator)
        why = reason(operator)
        if why is not None:
            self.add(operator.name(), why)

    @property
    def names(self) -> frozenset[str]:
        """Returns the names of the operators that have run on the GPU, without namespace and overload: "mm"."""
        return frozenset(operator._schema.name.rpartition("::")[2] for operator in self._seen)

    def add(self, name: str, why: str, lower_bound: bool = True) -> None:
        """Records that the figures exclude `why` because of `name`, and warns the first time for each `name`.

        `lower_bound` says whether allocated memory is still at least what the counters show. Reserved memory never is.
        """
        if name in self._reasons:
            return
        self._reasons[name] = why
        self.lower_bound = self.lower_bound and lower_bound
        allocated = "allocated memory is at least what the counters say, and " if self.lower_bound else "allocated and "
        self.say(
            name,
            f"simulated {self.gpu}: the figures of {name} exclude {explained(why)}. "
            f"From here on {allocated}reserved memory may be off in either direction.",
            IncompleteEstimateWarning,
        )

    def beside(self, what: str) -> None:
        """Records `what`, one of WHY, as memory outside the allocator.

        The allocator's counters then stay complete, but nvidia-smi shows more.
        """
        self._beside[what] = WHY[what]

    @property
    def of_nvidia_smi(self) -> str:
        """Returns what only nvidia-smi's figure excludes, as "NCCL's own buffers (…)"; "" if nothing."""
        return "; ".join(f"{what} ({why})" for what, why in self._beside.items())

    def say(self, key: str, message: str, category: type[Warning] = UserWarning) -> None:
        """Warns once per `key` of this GPU, at the line of the user's code that is running."""
        if key in self._said:
            return
        self._said.add(key)
        file, line = users_line()
        warnings.warn_explicit(message, category, file, line)

    def __bool__(self) -> bool:
        return bool(self._reasons or self._beside)

    def __iter__(self):
        return iter((self._reasons | self._beside).items())

    def __str__(self) -> str:
        """Returns one line: "at least: without cuDNN's workspaces", "about: ..." if it is not a lower bound, "" if
        complete.
        """
        whats = dict.fromkeys(f"{name} ({why})" if why not in WHY else why for name, why in self._reasons.items())
        whats.pop(UNCOMPARED, None)
        uncompared = [name for name, why in self._reasons.items() if why == UNCOMPARED]
        parts = [*whats, *(f"the memory of {name} but its outputs" for name in uncompared)]
        return f"{'at least' if self.lower_bound else 'about'}: without {', '.join(parts)}" if parts else ""


_OTHERS = str(Path(torch.__file__).parent)


def users_line() -> tuple[str, int]:
    """Returns file and line of the innermost frame outside PyTorch and simgpu, above the caller of this function's
    caller.
    """
    frame = users_frame(2)
    return frame.f_code.co_filename, frame.f_lineno


def users_frame(depth: int = 1):
    """Returns the innermost frame outside PyTorch and simgpu, starting `depth` frames above the caller."""
    frame = sys._getframe(depth + 1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*PATHS, _OTHERS)):
        frame = frame.f_back
    return frame
