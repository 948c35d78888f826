"""CUDA's checks of a call before anything is allocated: dtypes, devices, overlapping memory, missing kernels."""
