"""Pipeline stages that tell each other their shapes, where one GPU is one rank after the other; and the streams of
backward, which FSDP1 needs."""

import pytest
import torch
from torch import distributed as dist
from torch import nn

import simgpu
from simgpu.distributed import messages
from simgpu.errors import NoValueError

pipelining = pytest.importorskip("torch.distributed.pipelining")


@pytest.fixture(autouse=True)
def nothing_kept():
    messages._kept.clear()
    messages._read.clear()
    with simgpu.simulated_gpu("H100"):
        yield
    messages._kept.clear()
    messages._read.clear()


def stage_of(rank, of):
    """One rank's two steps of 1F1B, whose stage is not told what it receives: the shape of its weight's gradient."""
    with simgpu.one_rank(rank, of=of):
        dist.init_process_group("nccl")
        device = torch.device("cuda", torch.cuda.current_device())
        layer = nn.Linear(16 * (rank + 1), 16 * (rank + 2)).to(device)
        received = []
        layer.register_forward_pre_hook(lambda layer, arguments: received.append(tuple(arguments[0].shape)))
        stage = pipelining.PipelineStage(layer, rank, of, device)
        schedule = pipelining.Schedule1F1B(stage, of, loss_fn=lambda y, target: (y - target).pow(2).mean())
        for _ in range(2):
            if rank == 0:
                schedule.step(torch.randn(8 * of, 16, device=device))
            elif rank == of - 1:
                schedule.step(target=torch.randn(8 * of, 16 * (rank + 2), device=device))
            else:
                schedule.step()
        assert len(set(received)) == 1
        return received[0], tuple(layer.weight.grad.shape)


def test_stages_learn_their_shapes_from_those_that_ran_before():
    for rank in (0, 1, 2, 3, 2):
        assert stage_of(rank, 4) == ((8, 16 * (rank + 1)), (16 * (rank + 2), 16 * (rank + 1)))


def test_a_stage_says_who_has_to_run_before_it():
    stage_of(0, 4)
    with pytest.raises(NoValueError, match="rank 2 waits for an object from rank 1"):
        stage_of(2, 4)


def test_an_object_goes_from_one_rank_to_the_next():
    with simgpu.one_rank(0, of=2):
        dist.init_process_group("nccl")
        dist.send_object_list(["a text", {"n": 3}], dst=1)
    with simgpu.one_rank(1, of=2):
        dist.init_process_group("nccl")
        found = [None, None]
        dist.recv_object_list(found, src=0)
    assert found == ["a text", {"n": 3}]


def test_backward_takes_memory_on_the_stream_of_forward():
    side = torch.cuda.Stream()
    x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
    with torch.cuda.stream(side):
        y = x.exp()
    torch.cuda.current_stream().wait_stream(side)
    y.backward(torch.ones_like(y))
    (block,) = [
        one
        for segment in torch.cuda.memory_snapshot()
        for one in segment["blocks"]
        if one["address"] == x.grad.data_ptr() and segment["stream"] == side.stream_id
    ]
    assert block["requested_size"] == x.nbytes
    assert torch.cuda.current_stream().stream_id == 0


def test_the_stream_is_as_it_was_after_an_error_in_backward():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ArithmeticError("no gradient")

    x = torch.randn(4, device="cuda", requires_grad=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        y = Failing.apply(x * 2) * 3
    with pytest.raises(ArithmeticError):
        y.sum().backward()
    assert torch.cuda.current_stream().stream_id == 0
