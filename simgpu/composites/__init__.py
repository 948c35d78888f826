"""Operators that CUDA's C++ decomposes into others and that a meta tensor would decompose differently."""
