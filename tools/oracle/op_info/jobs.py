"""What is compared at once: an operator of a suite, in one dtype, in one variant, with small or with large samples."""

from __future__ import annotations

import re
from typing import NamedTuple

SUITES = ("op", "foreach", "module", "optim")
DTYPES = ("float32", "bfloat16", "float16", "int64", "bool")
VARIANTS = ("plain", "inplace", "out")
SIZES = ("small", "large")


class Job(NamedTuple):
    """`suite`, `variant` and `size` are of the tuples above; `name` is the suite's own, "nn.functional.linear"."""

    suite: str
    name: str
    dtype: str
    variant: str = "plain"
    size: str = "small"

    @property
    def part(self) -> str:
        """The pass it belongs to: "op-float32-plain-small"."""
        return "-".join((self.suite, self.dtype, self.variant, self.size))


def of_part(part: str, name: str) -> Job:
    """The job of an operator in a pass."""
    suite, dtype, variant, size = part.split("-")
    return Job(suite, name, dtype, variant, size)


def parts(suites, dtypes, variants, sizes) -> list[str]:
    """The passes that there are in a product of suites, dtypes, variants and sizes."""
    return [
        f"{suite}-{dtype}-{variant}-{size}"
        for suite in suites
        for dtype in dtypes
        for variant in variants
        for size in sizes
        if _exists(suite, dtype, variant, size)
    ]


def _exists(suite: str, dtype: str, variant: str, size: str) -> bool:
    if suite in ("module", "optim") and (variant != "plain" or dtype in ("int64", "bool")):
        return False
    if suite == "foreach" and (variant == "out" or size == "large"):
        return False
    return not (size == "large" and (variant == "out" or suite == "module"))


def matches(name: str, patterns: list[str]) -> bool:
    """Whether a name fits one of the patterns: "linalg.*", "add", "/^[a-l]/" (a regular expression); all fit none."""
    from fnmatch import fnmatchcase

    def fits(pattern: str) -> bool:
        if len(pattern) > 1 and pattern[0] == pattern[-1] == "/":
            return re.search(pattern[1:-1], name) is not None
        return fnmatchcase(name, pattern)

    return not patterns or any(map(fits, patterns))
