"""Versions of the tensors that operators on lists write (torch._foreach_*), which autograd compares in backward."""

import pytest
import torch

import simgpu


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_step_before_a_second_backward_is_the_error_that_it_is_on_a_gpu(make, foreach):
    with simgpu.simulated_gpu("T4"):
        model = torch.nn.Linear(256, 1).cuda()
        optimizer = make(model.parameters(), lr=1e-3, foreach=foreach)
        x = torch.randn(4, 256, device="cuda", requires_grad=True)
        first, second = model(x).sum(), model(x).mean()
        first.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.backward()


@pytest.mark.parametrize(
    ("name", "others", "version"),  # PyTorch's own CUDA code, torch 2.13
    [
        ("add_", (1.0,), 1),
        ("mul_", ("list",), 1),
        ("addcdiv_", ("list", "list"), 1),
        ("lerp_", ("list", "list"), 1),
        ("lerp_", ("list", 0.5), 0),
        ("sqrt_", (), 1),
        ("zero_", (), 0),
        ("copy_", ("list",), 1),
    ],
)
def test_versions_of_the_tensors_that_a_list_operator_writes(name, others, version):
    with simgpu.simulated_gpu("T4"):
        written, read = ([torch.ones(3, device="cuda") for _ in range(2)] for _ in range(2))
        getattr(torch, f"_foreach_{name}")(written, *(read if one == "list" else one for one in others))
        assert [one._version for one in written] == [version] * 2
