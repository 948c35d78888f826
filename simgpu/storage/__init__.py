"""Simulated tensors: their blocks, their shapes, their known values, and what dispatcher and autograd do with them."""
