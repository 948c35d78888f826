"""Shapes and strides of results, by PyTorch's meta kernels and shorter ways to what they return."""
