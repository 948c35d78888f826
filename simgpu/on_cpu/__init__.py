"""Operators computed on the CPU beside the simulation, for a simulated GPU with the values of all tensors."""

from simgpu.on_cpu import (  # noqa: F401  (they register what they hold)
    attention,
    cells,
    embedding_bag,
    histograms,
    normalization,
    products,
    softmax,
)
