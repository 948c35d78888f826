"""A backward that fails lets its graph go, as on a GPU, whatever it still had to do."""

import pytest
import torch

import labkit


def fail(gradient):
    raise ValueError("on purpose")


@pytest.mark.parametrize("run", [torch.Tensor.backward, torch.autograd.backward])
def test_nothing_is_left_of_it(run):
    with labkit.simulated_gpu("A100-80GB"):
        x = torch.ones(1024, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        left, right = (x * 2) ** 2, (x * 3) ** 2  # each keeps its base
        right.register_hook(fail)  # right is made later, so backward comes there first, and left is waiting
        loss = (left + right).sum()
        del left, right
        with pytest.raises(ValueError, match="on purpose"):
            run(loss)
        del loss
        assert torch.cuda.memory_allocated() == before


def test_out_of_memory_in_backward():
    """With every branch of attention's gradients waiting; each limit fails somewhere else."""
    with labkit.simulated_gpu("A100-80GB") as gpu:
        layer = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True, device="cuda")
        x = torch.zeros(4, 512, 256, device="cuda")
        layer(x).sum().backward()
        layer.zero_grad()
        before = torch.cuda.memory_allocated()
        failed = 0
        for limit in range(40, 120, 4):
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(limit * 2**20 / gpu.total_memory)
            try:
                layer(x).sum().backward()
            except torch.cuda.OutOfMemoryError:
                failed += 1
            layer.zero_grad()
            torch.cuda.set_per_process_memory_fraction(1.0)
            assert torch.cuda.memory_allocated() == before
        assert 5 < failed < 20


def test_the_gradients_of_another_backward_are_as_ever():
    with labkit.simulated_gpu("A100-80GB"):
        w = torch.ones(4, requires_grad=True)
        with torch.no_grad(), pytest.raises(RuntimeError, match="does not require grad"):
            torch.zeros((), device="cuda").backward()
        (w * 3).sum().backward()
        assert w.grad.tolist() == [3.0] * 4
