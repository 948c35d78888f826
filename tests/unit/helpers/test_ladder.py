"""The step of the ladder of speed: its switches change its time, and it updates the weights of its model."""

import pytest
import torch
import torch.distributed as dist

import labkit
from helpers import models
from helpers.ladder import training_step


def milliseconds(**switches):
    with labkit.simulated_gpu("H100"):
        step, pair = training_step(**switches), (torch.zeros(256, 128, dtype=torch.long).pin_memory(),) * 2
        for _ in range(2):
            step(pair)
        with labkit.stopwatch() as timing:
            step(pair)
        return timing.ms


@pytest.mark.filterwarnings("ignore")
def test_each_switch_of_the_ladder_shortens_the_step():
    plain, compiled = milliseconds(), milliseconds(compiled=True)
    both = milliseconds(compiled=True, half=True)
    assert milliseconds(non_blocking=True) <= plain
    assert both < 0.9 * compiled < 0.9 * plain


def test_a_step_allocates_the_gradients_and_the_states_of_adamw():
    with labkit.simulated_gpu("H100"):
        step = training_step()
        weights = torch.cuda.memory_allocated()
        step((torch.zeros(4, 128, dtype=torch.long),) * 2)
        assert torch.cuda.memory_allocated() > 3.9 * weights


@pytest.mark.filterwarnings("ignore")
def test_with_ddp_a_step_sends_each_gradient_once_if_there_are_two_ranks():
    with labkit.simulated_gpu("H100"), labkit.one_rank(0, of=2) as me:
        dist.init_process_group("nccl")
        step, pair = training_step(ddp=True), (torch.zeros(4, 128, dtype=torch.long),) * 2
        step(pair)
        me.traffic.clear()
        step(pair)
        gradients = 4 * sum(p.numel() for p in models.MinGPT(6, heads=6, width=192).parameters())
        # a ring all-reduce sends 2 (N - 1) / N times the bytes
        assert me.traffic.by_kind()["all_reduce"].sent == pytest.approx(gradients, rel=0.001)
