"""Operators that the CPU computes during the simulation, for a simulated GPU with real values in all tensors."""

from simgpu.cpu_reference import attention, cells, cuda_only, normalization  # noqa: F401  (they register what they hold)
