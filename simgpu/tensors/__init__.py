"""Simulated tensors: where they live, their shapes, known values, and what the dispatcher and autograd do with them."""
