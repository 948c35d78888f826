"""labkit: what the course "GPU memory, byte by byte" measures with."""

from labkit.gpu import simulated_gpu, use_gpu

__all__ = ["simulated_gpu", "use_gpu"]
