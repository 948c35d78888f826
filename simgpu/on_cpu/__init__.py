"""Operators that the CPU computes during the simulation, for a simulated GPU with real values in all tensors."""

from simgpu.on_cpu import (  # noqa: F401  (they register what they hold)
    attention,
    cells,
    embedding_bag,
    histograms,
    normalization,
    products,
    softmax,
)
