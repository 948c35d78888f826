"""Operators computed on the CPU beside the simulation, for a simulated GPU with the values of all tensors."""
