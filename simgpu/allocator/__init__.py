"""Models PyTorch's caching allocator for CUDA devices, exact to the byte, without torch and without a GPU."""
