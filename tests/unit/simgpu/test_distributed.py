"""gloo beside a simulated GPU that is alone, and a PyTorch that nobody compared."""

import warnings

import pytest
import torch
import torch.distributed as dist

import simgpu
from simgpu import session
from simgpu.errors import NotModelledError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")


@pytest.fixture
def gloo():
    with simgpu.simulated_gpu("A100-80GB"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


def test_gloo_works_on_tensors_of_the_cpu(gloo):
    x = torch.arange(4.0)
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    gathered = [torch.zeros(4)]
    dist.all_gather(gathered, x)
    assert gathered[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: dist.all_reduce(x),
        lambda x: dist.broadcast(x, 0),
        lambda x: dist.all_gather([torch.empty_like(x)], x),
        lambda x: dist.all_gather_into_tensor(torch.empty_like(x), x),
        lambda x: dist.reduce(x, 0),
        lambda x: dist.reduce_scatter_tensor(torch.empty_like(x), x),
        lambda x: dist.all_to_all_single(torch.empty_like(x), x),
        lambda x: dist.gather(x, [torch.empty_like(x)]),
        lambda x: dist.scatter(x, [torch.empty_like(x)]),
    ],
)
@pytest.mark.parametrize("device", ["cuda", "without values"])
def test_collectives_of_simulated_tensors_are_refused(gloo, call, device):
    x = torch.ones(4, device="cuda")
    with pytest.raises(NotModelledError, match=r"c10d\..* of simulated tensors is not modelled"):
        call(x if device == "cuda" else x.cpu())


def test_a_newer_torch_says_so_once(monkeypatch):
    session.tell_of_a_newer_torch.cache_clear()
    monkeypatch.setattr(session, "installed_torch", lambda: (2, 16))
    told = pytest.warns(UserWarning, match=r"compared with torch 2\.11, .*2\.15, and torch 2\.16 is installed")
    with told, simgpu.simulated_gpu("A100-80GB"):
        assert torch.ones(1, device="cuda").is_cuda
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with simgpu.simulated_gpu("A100-80GB"):
            pass


@pytest.mark.parametrize("version", session.COMPARED)
def test_those_that_were_compared_do_not(version):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.tell_of_a_newer_torch(version)
