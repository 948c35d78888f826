"""Runs PyTorch's own CUDA host code without a GPU, as the judge of the simulated GPU: `python -m tools.oracle
COMMAND`.

`build` unpacks a CUDA wheel of PyTorch and compiles stub CUDA libraries for it to load; `record` runs the
workloads of `tools/oracle/workloads` there and keeps what they allocated; `compare` holds the simulated GPU against
that. See docs/oracle.md. A figure from here is *PyTorch's CUDA host code under stub libraries*, never a
GPU's.
"""
