"""What the clock assumes, beside the peak rates of `specs`: the shares of them that are reached, and fixed costs.

All are assumptions from published figures, named here; none was changed to bring a simulated time closer to a published
one. Shares are of the figure in `specs`; times are in seconds. TRACES are profiler traces of a real RTX 3060 Ti and a
real H100 in the public repository ailzhang/EfficientPyTorch (chapters 6 and 8; in whole microseconds, and the profiler
slows the host down). They are of somebody else's hosts: another host is as fast as it is.
"""

COMPUTE = 0.8
"""Of the peak rate, by large matrix products and convolutions, on a GPU or in a type for which `timing.reached` has no
measured rate. Measured best cases: 0.87 A100, 0.80 H100, 0.78 B200 (Bekman, Machine Learning Engineering, table of
maximum achievable matmul FLOPS, bf16)."""

ATTENTION = 0.6
"""Of the peak rate, by fused attention. The middle of 0.50 to 0.73 on an A100 (Dao, FlashAttention-2, 2023)."""

BANDWIDTH = 0.9
"""Of the memory's bandwidth, on a GPU for which `timing.reached` has no measured copy. 0.90 is a copy's on an H200 (4.3
of 4.8 TB/s); 0.91 that of a product with a number in TRACES (512 MiB read and written in 1.3175 ms, of 448 GB/s)."""

TILE = 128
"""Rows and columns of the output that one block of threads of a matrix product computes; an output is filled up to
whole tiles, and the multiprocessors work tiles off in waves (NVIDIA, Matrix Multiplication Background User's Guide)."""

CONVOLUTION_TILE = 64
"""The same for convolutions on Tensor Cores, at least: a group of a grouped convolution fills of a tile only as many
columns as it has channels, however many groups the tile is shared by (CUTLASS, python/cutlass_library/generator.py,
GenerateSM80_TensorOp_16816, and CHANGELOG.md, group convolutions of 2.9 and 2.11). cuDNN's tiles are not published."""

SIMT_TILE = 32
"""The same without Tensor Cores (GenerateSM50_Simt there)."""

SPLIT = 512
"""Where tiles are fewer than multiprocessors, the sum over k is split among blocks of at least this length, into as
many as lose least (split-k; Osama et al., Stream-K, 2023, has what a fixed number of parts loses): an assumption that
stands for what cuBLAS finds by heuristics. It also takes narrower tiles, which is not modelled."""

PINNED = 0.8
"""Of the link's bandwidth, by copies from and to pinned memory: 24.8 of 31.5 GB/s (nvbandwidth on an A100 with PCIe
4.0, NVIDIA developer forum 352186)."""

PAGEABLE = 0.32
"""The same for pageable memory: 0.4 of PINNED, as 2.2 of 5.4 GB/s in NVIDIA's "How to Optimize Data Transfers in CUDA
C/C++" (2012). It depends on the host's memory: in TRACES it is 3 to 5 of 31.5 GB/s."""

KERNEL = 3e-6
"""A kernel on the device beside its work: TRACES show 2 µs for the shortest, and 1 µs between two in a row."""

LAUNCH = 3e-6
"""One cudaLaunchKernel on the host: the median in TRACES, on both machines."""

OPERATOR = 7e-6
"""An operator on the host, beside its launches: Python, dispatcher, autograd, allocation. From one launch to the next
of a loop of small layers TRACES show 15 µs (forward) and 17 µs (backward) under the profiler; 10 with LAUNCH is assumed
without it."""

CPU_OPERATOR = 3.4e-6
"""An operator in the loop of small layers on the CPU of `simgpu/this_host.py`, on a host that counts as 1: measured on
an Intel Xeon (a virtual machine with two cores, torch 2.13.0, 2026), the one constant here that is of no publication.
No published host has both this figure and OPERATOR: that this one stands for that of TRACES is an assumption."""

VIEW = 1.5e-6
"""An operator that only makes a view, on the host: 1 µs (view) to 2 µs (t) in TRACES."""

TENSOR = 0.5e-6
"""A tensor more in an operator on lists (torch._foreach_*), on the host: 28 µs for 40 tensors in TRACES."""

CALL = 1e-6
"""A call of CUDA's that gives the device nothing to do, on the host: recording and asking an event, in TRACES."""

SYNCHRONIZE = 5e-6
"""Waiting for the device, on the host, when it is done already: cudaStreamSynchronize in TRACES."""

QUEUE = 1024
"""Launches that wait on the device before the host has to wait. CUDA does not document it; about 1024 is what users
observe."""
