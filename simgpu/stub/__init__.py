"""The stub engine: PyTorch's own CUDA build on CUDA libraries that execute nothing. docs/engines.md is its page."""
