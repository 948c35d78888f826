"""The oracle is the stub engine (`simgpu.stub`) of a version of PyTorch, whose wheel is always fetched."""

from __future__ import annotations

from simgpu.stub import install
from simgpu.stub.engine import home

__all__ = ["build", "home"]


def build(version: str, index: str | None = None) -> None:
    """Makes the oracle for `version` of torch ready in `home()`. `index`: a package index in PyPI's place;
    PyTorch's own has the builds of each night.

    Raises RuntimeError where this machine cannot: not Linux on x86-64, or no C compiler.
    """
    install.install(version, index=index, unpack=True)
