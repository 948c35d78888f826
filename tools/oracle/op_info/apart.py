"""What the oracle cannot answer, by name and with the reason; docs/operators.json shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from simgpu import unmodeled

# What an error of the oracle's says where one of its libraries is a stub, or where it has read a value.
STUBS = (
    (r"cusolver|CUSOLVER|MAGMA|magma", "cuSOLVER and MAGMA are stubs in the oracle"),
    (r"cufft|CUFFT|cuFFT", "cuFFT is a stub in the oracle"),
    (r"nvrtc|NVRTC|Jiterator", "NVRTC is a stub in the oracle"),
    (r"cusparse|CUSPARSE", "cuSPARSE is a stub in the oracle"),
    (r"Unable to cast \(tensor\(\[", "the text of the error has the values of tensors, and simulated ones have none"),
)
VALUES = "what it takes depends on values, and the oracle reads every value as 0"
CHECKS = (  # of values, which the oracle reads as 0
    "normal expects all elements of std >= 0.0",
    "Expected all rows of lengths along axis",
    "input tensor should not contain infs or NaNs",
    "repeats can not be negative",
    "index -1 is out of bounds for dimension 0 with size 0",  # the last of the distinct values
    "aweights cannot be negative",
    "fweights cannot be negative",
    "index_select(): Index to scalar can have only 1 value, got 0 value(s)",
    "ZeroDivisionError: float division by zero",  # by the number of batches that batch norm has seen
)
# Operators whose results are as long as their values say, and one whose gradient asks whether a factor is 0: all are,
# and the oracle reads that none is.
BY_VALUES = {"aten::_unique", "aten::_unique2", "aten::cumprod"}
IS_A_VALUE = "its result is a value, and a simulated tensor has none"
LAYOUT = "sparse tensors"

# Operators, as patterns of "suite:name", whose answer by the oracle says nothing.
BY_NAME: tuple[tuple[str, str], ...] = (
    *((f"op:{name}", VALUES) for name in (
        "nonzero", "argwhere", "unique*", "masked_select", "bincount", "combinations")),
    *((f"op:{name}", IS_A_VALUE) for name in ("equal", "allclose", "item")),
    *((f"op:{name}", LAYOUT) for name in ("to_sparse", "sparse.*")),
    *((f"op:{name}", "cuFFT is a stub in the oracle") for name in ("stft", "istft")),
    *((f"op:{name}", "cuSOLVER and MAGMA are stubs in the oracle") for name in (
        "cholesky_solve", "linalg.lstsq*", "linalg.eig", "linalg.eigvals", "pca_lowrank", "svd_lowrank", "geqrf",
        "ormqr", "linalg.householder_product")),
    ("op:jiterator*", "kernels that a program writes itself"),
    ("optim:LBFGS", VALUES),
)  # fmt: skip


def reason(suite: str, name: str, error: str | None, ran: Iterable[str] = ()) -> str | None:
    """Why the oracle's answer to a sample is set apart, None if it is not.

    `error`: what the oracle raised. `ran`: the overloads that ran on the simulated GPU.
    """
    for pattern, why in BY_NAME:
        if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), f"{suite}:{name}"):
            return why
    for library, operators in unmodeled.LIBRARIES.items():
        if called := {one.split(".")[0].removeprefix("aten::") for one in ran} & set(operators):
            return f"{library}: {', '.join(sorted(called))}"
    if error is not None:
        if any(check in error for check in CHECKS):
            return VALUES
        return next((why for pattern, why in STUBS if re.search(pattern, error)), None)
    return None
