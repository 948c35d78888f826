"""How fast this machine's processor issues PyTorch's operators, beside the host that the clock assumes.

A loop of small layers runs on the CPU, forward, backward and a step of SGD, with tensors so small that what is computed
takes next to no time: what is left is what a GPU's host has to do too for each operator, Python, dispatcher, autograd
and allocation. The factor is the loop's time over that on a host which counts as 1 (`rates.CPU_OPERATOR` for each
operator, and as much less for one that makes a view as the clock assumes). What it cannot tell is how fast this
machine's driver launches a kernel; that is taken to be as much slower or faster as the rest.
"""

import time
from contextlib import ExitStack

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from simgpu.modes import costs
from simgpu.modes.operators import VIEW, facts_of
from simgpu.timing import rates

LAYERS, WIDTH, BATCH = 20, 8, 4
ENOUGH = 0.6  # seconds that are measured


class _Counting(TorchDispatchMode):
    """Adds up what the operators that run take on a host that counts as 1."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        free = facts_of(operator).kind is VIEW or costs.plan_of(operator).free
        self.seconds += rates.CPU_OPERATOR * (rates.VIEW / rates.OPERATOR if free else 1)
        return operator(*args, **(kwargs or {}))


def host_slowness() -> float:
    """How many times as long as the host of the clock this machine takes for an operator; 2 is half as fast.

    Takes about a second, and wants a machine that does nothing else: the fastest of many rounds counts. The number is
    what `simulated_gpu(..., host=...)` takes. Simulated GPUs that are on are set aside meanwhile.
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
    """Seconds of the fastest of the steps that fit into the time."""
    best, end = float("inf"), time.perf_counter() + ENOUGH
    while (start := time.perf_counter()) < end:
        step()
        best = min(best, time.perf_counter() - start)
    return best
