"""Errors of PyTorch's that name a tensor's type, in the words of a GPU."""

import re

import pytest
import torch

import labkit

# The words are those of PyTorch 2.13.0's CUDA build under stub libraries.


@pytest.fixture
def gpu():
    with labkit.simulated_gpu("A100-80GB") as simulated:
        yield simulated


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float32, "torch.cuda.FloatTensor"), (torch.bfloat16, "CUDABFloat16Type")]
)
@pytest.mark.parametrize("ask", [lambda loss, x: loss.backward(), torch.autograd.grad], ids=["backward", "grad"])
def test_a_saved_tensor_changed_in_place(dtype, name, ask):
    x = torch.zeros(4, 4, device="cuda", dtype=dtype, requires_grad=True)
    y = torch.sigmoid(x)
    y.mul_(2)
    with pytest.raises(RuntimeError) as caught:
        ask(y.sum(), x)
    node = "Sigmoid(Backward0)?"  # the second is torch 2.11's name
    said = rf"\[{name} \[4, 4\]\], which is output 0 of {node}, is at version 1; expected version 0 "
    assert re.search(said + "instead", str(caught.value))


@pytest.mark.usefixtures("gpu")
def test_other_errors_pass_as_they_are():
    x = torch.zeros(4, device="cuda", requires_grad=True)
    y = x * x
    y.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda x: torch.tensor_split(x, x[:1].long()), "it's on cuda:0"),
        (lambda x: x.requires_grad_().backward(torch.ones(4)), "expected device cuda:0 but got cpu"),
        (lambda x: torch.nn.LSTM(4, 4, device="cuda")(torch.ones(2, 4)), "parameter tensor at cuda:0"),
        (lambda x: torch.from_dlpack(x), "DLPack"),
        (
            lambda x: torch._foreach_addcmul_([x], [x], [x], x.sum()),
            "Expected scalars to be on CPU, got cuda:0 instead.",
        ),
    ],
)
def test_no_message_says_that_a_tensor_is_meta(ask, said):
    with labkit.simulated_gpu("A100-80GB"), pytest.raises((RuntimeError, NotImplementedError)) as caught:
        ask(torch.ones(4, device="cuda"))
    assert said in str(caught.value)
    assert "meta" not in str(caught.value)
