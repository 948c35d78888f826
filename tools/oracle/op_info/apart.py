"""What the oracle cannot answer, by name and with the reason; docs/operators.json shows it."""

from __future__ import annotations

import re

# What an error of the oracle's says where one of its libraries is a stub.
STUBS = (
    (re.compile(r"cusolver|CUSOLVER"), "cuSOLVER is a stub in the oracle"),
    (re.compile(r"MAGMA|magma"), "MAGMA is a stub in the oracle"),
    (re.compile(r"cufft|CUFFT|cuFFT"), "cuFFT is a stub in the oracle"),
    (re.compile(r"nvrtc|NVRTC|jiterator|Jiterator"), "NVRTC is a stub in the oracle"),
    (re.compile(r"cusparse|CUSPARSE"), "cuSPARSE is a stub in the oracle"),
    (re.compile(r"cudss|cuDSS"), "cuDSS is a stub in the oracle"),
)
VALUES = "what it takes depends on values, and the oracle reads every value as 0"
LAYOUT = "sparse, jagged and MKL-DNN tensors are no part of this suite"

# Operators, as patterns of "suite:name", whose answer by the oracle says nothing.
BY_NAME: tuple[tuple[str, str], ...] = (
    ("op:nonzero", VALUES),
    ("op:argwhere", VALUES),
    ("op:unique*", VALUES),
    ("op:masked_select", VALUES),
    ("op:bincount", VALUES),
    ("op:combinations", VALUES),
)


def reason(suite: str, name: str, error: str | None) -> str | None:
    """Why the oracle's answer is set apart, None if it is not. `error`: what the oracle raised."""
    for pattern, why in BY_NAME:
        if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), f"{suite}:{name}"):
            return why
    if error is not None:
        return next((why for pattern, why in STUBS if pattern.search(error)), None)
    return None
