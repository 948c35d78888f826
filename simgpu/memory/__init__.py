"""PyTorch's caching allocator for CUDA devices, exact to the byte. No torch is needed, and no GPU."""
