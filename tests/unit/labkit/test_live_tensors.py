"""What is alive on the GPU, among objects of any kind: some refuse to be asked."""

import weakref

import pytest
import torch
from torch import distributed as dist
from torch import nn

import simgpu
from labkit.live_tensors import living


class Refusing(torch.Tensor):
    """A tensor that answers no function and no attribute, as ShardedTensor does."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"torch function '{function.__name__}' is not supported")


class Broken(torch.Tensor):
    """A tensor made of others, of which it does not say which."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (4,), device=torch.device("meta"))

    def __tensor_flatten__(self):
        raise RuntimeError("not yet")

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("not yet")


class Nameless(nn.Module):
    """A module that does not tell its parameters."""

    def named_parameters(self, *args, **kwargs):
        raise RuntimeError("not yet")


class Pretending(dict):
    """A dictionary that says it is a tensor, and whose items are nobody's business."""

    __class__ = torch.Tensor  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    def items(self):
        raise RuntimeError("not yet")


def test_objects_that_refuse_to_be_asked_do_not_matter():
    with simgpu.simulated_gpu("H100"):
        kept = torch.empty(1024, device="cuda")
        odd = torch.empty(2048, device="cuda").as_subclass(Refusing)
        pretending, broken, nameless = Pretending(a=1), Broken(), Nameless()
        proxies = [weakref.proxy(nameless), nn.LazyLinear(4, device="cuda").weight]
        found = {one.name: one.size for one in living(locals())}
    assert found == {"kept": 4096, "odd": 8192}
    assert [pretending, broken, proxies]


def test_tensors_of_a_gpu_that_was_on_before_are_not_alive_on_this_one():
    with simgpu.simulated_gpu("H100"):
        before = torch.empty(1024, device="cuda")
        with simgpu.simulated_gpu("T4"):
            now = torch.empty(512, device="cuda")
            assert [(one.name, one.size) for one in living(locals())] == [("now", 2048)]
        assert [(one.name, one.size) for one in living(locals())] == [("before", 4096)]
    with simgpu.simulated_gpu("H100"):
        assert living(locals()) == []
        del before, now


@pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")
@pytest.mark.filterwarnings("ignore")
def test_a_dtensor_is_its_part():
    from torch.distributed.fsdp import fully_shard

    with simgpu.simulated_gpu("H100", ranks=4, rank=1):
        dist.init_process_group("nccl")
        model = fully_shard(nn.Linear(64, 64, bias=False).cuda())
        found = living(locals())
        sizes = {one.name: (one.shape, one.size) for one in found if one.size}
        assert sizes == {"model.weight": ((16, 64), torch.cuda.memory_allocated())}
        del model
