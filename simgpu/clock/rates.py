"""Assumptions of the clock in addition to the peak rates of `specs`: the shares of them that are reached, and fixed
costs.

All are assumptions from published figures, named here. None was changed to bring a simulated time closer to a published
one. Factors that were fitted to published times are in `estimates`, and apply where a time is printed. Shares are of
the figure in `specs`; times are in seconds. TRACES are profiler traces of a real RTX 3060 Ti and a real H100 in the
public repository ailzhang/EfficientPyTorch (chapters 6 and 8). They are in whole microseconds, and the profiler slows
the host down. They come from two specific hosts, and other hosts are faster or slower.
"""

COMPUTE = 0.8
"""Share of the peak rate that large matmuls and convolutions reach.

It applies to a GPU or a type for which `clock.achieved_rates` has no measured rate. Measured best cases: 0.87 A100,
0.80 H100, 0.78 B200 (Bekman, Machine Learning Engineering, table of maximum achievable matmul FLOPS, bf16).
"""

ATTENTION = 0.6
"""Share of the peak rate that fused attention reaches: the middle of 0.50 to 0.73 on an A100.

(Dao, FlashAttention-2, 2023)
"""

BANDWIDTH = 0.9
"""Share of the memory bandwidth that is reached on a GPU for which `clock.achieved_rates` has no measured copy.

A copy on an H200 reaches 0.90 (4.3 of 4.8 TB/s). A tensor times a scalar reaches 0.91 in TRACES (512 MiB read and
written in 1.3175 ms, of 448 GB/s).
"""

TILE = 128
"""Rows and columns of the output that one thread block of a matmul computes.

An output is padded to whole tiles, and the multiprocessors compute the tiles in waves (NVIDIA, Matrix Multiplication
Background User's Guide).
"""

CONVOLUTION_TILE = 64
"""Smallest tile of a convolution on Tensor Cores.

A group of a grouped convolution fills only as many columns of a tile as it has channels, even if several groups share
the tile (CUTLASS, python/cutlass_library/generator.py, GenerateSM80_TensorOp_16816, and CHANGELOG.md, group
convolutions of 2.9 and 2.11). cuDNN's tiles are not published.
"""

SIMT_TILE = 32
"""Smallest tile without Tensor Cores (GenerateSM50_Simt in CUTLASS's generator.py)."""

SPLIT = 512
"""Shortest part into which the sum over k is split if there are fewer tiles than multiprocessors (split-k).

The number of parts is the one that loses least; Osama et al., Stream-K, 2023, show what a fixed number of parts loses.
This is an assumption that approximates cuBLAS's heuristics. cuBLAS also uses narrower tiles, which is not modelled.
"""

PINNED = 0.8
"""Share of the link's bandwidth that copies from and to pinned memory reach: 24.8 of 31.5 GB/s.

(nvbandwidth on an A100 with PCIe 4.0, NVIDIA developer forum 352186)
"""

PAGEABLE = 0.32
"""Share of the link's bandwidth that copies from and to pageable memory reach: 0.4 of PINNED.

That is 2.2 of 5.4 GB/s in NVIDIA's "How to Optimize Data Transfers in CUDA C/C++" (2012). It depends on the host's
memory: in TRACES it is 3 to 5 of 31.5 GB/s.
"""

KERNEL = 3e-6
"""Fixed device time of a kernel: TRACES show 2 µs for the shortest, and 1 µs between two consecutive ones."""

LAUNCH = 3e-6
"""Host time of one cudaLaunchKernel: the median in TRACES, on both machines."""

OPERATOR = 7e-6
"""Host time of an operator without its launches: Python, dispatcher, autograd, allocation.

From one launch to the next in a loop of small layers, TRACES show 15 µs (forward) and 17 µs (backward) under the
profiler. Without the profiler 10 µs including LAUNCH are assumed.
"""

CPU_OPERATOR = 3.4e-6
"""Host time of an operator in the loop of small layers of `simgpu/host_calibration.py`, for a host with factor 1.

It was measured on an Intel Xeon (a virtual machine with two cores, torch 2.13.0, 2026), and is the only constant here
that does not come from a publication. No published host has both this figure and OPERATOR. That this one corresponds to
that of TRACES is an assumption.
"""

VIEW = 1.5e-6
"""Host time of an operator that only creates a view: 1 µs (view) to 2 µs (t) in TRACES."""

TENSOR = 0.5e-6
"""Host time of each further tensor in an operator on lists (torch._foreach_*): 28 µs for 40 tensors in TRACES."""

CALL = 1e-6
"""Host time of a CUDA call without device work: recording and querying an event, in TRACES."""

SYNCHRONIZE = 5e-6
"""Host time of waiting for a device that is already idle: cudaStreamSynchronize in TRACES."""

QUEUE = 1024
"""Launches that can wait on the device before the host has to wait.

CUDA does not document it; users observe about 1024.
"""
