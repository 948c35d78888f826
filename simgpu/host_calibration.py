"""Measures how fast this machine's processor issues PyTorch's operators, relative to the host that the clock assumes.

A loop of small layers runs forward, backward and a step of SGD on the CPU. Its tensors are so small that computing
takes almost no time. What remains is what a GPU's host also has to do per operator: Python, dispatcher, autograd and
allocation. The factor is the loop's time divided by its time on a host that counts as 1 (`rates.CPU_OPERATOR` per
operator, reduced for views by the ratio that the clock assumes). How fast this machine's driver launches a kernel
cannot be measured this way, so it is assumed to be slower or faster by the same factor.
"""

import time
from contextlib import ExitStack

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from simgpu.clock import rates
from simgpu.dispatch import costs
from simgpu.dispatch.op_traits import VIEW
from simgpu.dispatch.stages import traits_of

LAYERS, WIDTH, BATCH = 20, 8, 4
ENOUGH = 0.6  # seconds of measurement


class _Counting(TorchDispatchMode):
    """Adds up the time of the operators that run, on a host that counts as 1."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        free = traits_of(operator).kind is VIEW or costs.plan_of(operator).free
        self.seconds += rates.CPU_OPERATOR * (rates.VIEW / rates.OPERATOR if free else 1)
        return operator(*args, **(kwargs or {}))


def host_slowness() -> float:
    """Returns how many times longer than the clock's host this machine takes per operator; 2 means half as fast.

    It takes about a second and needs an idle machine; the fastest of many rounds counts. Pass the result to
    `simulated_gpu(..., host=...)`. Simulated GPUs in use are disabled during the measurement.
    """
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        step = _loop()
        step()
        with _Counting() as assumed:
            step()
        return _fastest(step) / assumed.seconds


def _loop():
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)))
    layers = layers.to("cpu", torch.float32)
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3, foreach=False)
    batch = torch.ones(BATCH, WIDTH, device="cpu")

    def step():
        optimizer.zero_grad()
        layers(batch).sum().backward()
        optimizer.step()

    return step


def _fastest(step) -> float:
    """Returns the seconds of the fastest step within the measuring time."""
    best, end = float("inf"), time.perf_counter() + ENOUGH
    while (start := time.perf_counter()) < end:
        step()
        best = min(best, time.perf_counter() - start)
    return best
