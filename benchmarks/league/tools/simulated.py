"""The simulated GPU: runs the two steps on "cuda" and reads the counter."""

from __future__ import annotations

TITLE = "the simulated GPU (`simgpu`)"
NEEDS = ""
LIMITS = "no cuDNN, cuFFT or cuSOLVER workspaces (these workloads run without them); it runs the steps"
