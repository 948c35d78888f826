"""The simulated GPU: PyTorch's CUDA memory, to the byte, without a GPU."""
