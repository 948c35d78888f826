"""Operators that CUDA's C++ makes of others, where a meta tensor would get something else."""
