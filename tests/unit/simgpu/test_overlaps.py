"""Memory that an operator writes more than once, or reads while it writes it, is refused as on CUDA; texts are the
oracle's."""

import pytest
import torch
import torch.nn.functional as F

import labkit

WITHIN = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please "
    "clone() the tensor before performing the operation."
)
BETWEEN = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
    "location. Please clone() the tensor before performing the operation."
)


def zeros(*shape, **kinds):
    return torch.zeros(*shape, device="cuda", **kinds)


def raised(function, *args, values=False):
    with labkit.simulated_gpu("H100", values=values), pytest.raises(RuntimeError) as caught:
        function(*args)
    return str(caught.value)


def shifted():
    y = zeros(6, 7)
    y[1:] = y[:-1]


def transposed():
    y = zeros(6, 6)
    y.copy_(y.t())


def one_for_all():
    y = zeros(6)
    y.copy_(y[:1])


def in_other_bits():
    y = zeros(8)
    y[1:].view(torch.int32).copy_(y[:-1])


def put_from_itself():
    y = zeros(6)
    y.put_(torch.arange(2, device="cuda"), y[:2])


BETWEENS = {
    "shifted": shifted,
    "transposed": transposed,
    "one for all": one_for_all,
    "in other bits": in_other_bits,
    "put from itself": put_from_itself,
    "stacked": lambda y: torch.stack([y[1:5]], out=y[:4].view(1, 4)),
    "taken": lambda y: torch.take(y, torch.arange(20, device="cuda"), out=y),
    "logical": lambda y: torch.logical_and(y[1:], y[1:], out=y[:-1]),
    "scattered": lambda y: torch.scatter(y[1:], 0, torch.arange(3, device="cuda"), 1.0, out=y[:-1]),
}


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("name", BETWEENS)
def test_reading_what_is_written(name, values):
    function = BETWEENS[name]
    call = (lambda: function(zeros(20))) if function.__name__ == "<lambda>" else function
    assert raised(call, values=values) == BETWEEN


def test_reading_what_pytorch_allows():
    with labkit.simulated_gpu("H100"):
        y = zeros(6, 6)
        y.copy_(y)
        y[:, :3].copy_(y[:, 3:])  # with gaps, which is not looked at
        y[::2].copy_(y[1::2])
        y[1:].copy_(y[:-1].double())
        y[:0].copy_(y[:0])
        y[1:] = y[:-1].cpu()
        torch._foreach_copy_([y[1:]], [y[:-1]])
        torch.cumsum(y[1:], 0, out=y[:-1])
        y[1:].masked_scatter_(y[1:] == 0, y[:-1])
        e = zeros(5).expand(4, 5)
        e.copy_(e)
        c = zeros(6, dtype=torch.complex64)
        c.copy_(c.conj())


WITHINS = [
    lambda y: y.copy_(zeros(4, 5)),
    lambda y: y.copy_(torch.zeros(4, 5)),
    lambda y: y.__setitem__(slice(None), zeros(4, 5)),
    lambda y: y.normal_(),
    lambda y: y.bernoulli_(),
    lambda y: y.bernoulli_(zeros(4, 5)),
    lambda y: y.exponential_(),
    lambda y: y.geometric_(0.3),
    lambda y: y.log_normal_(),
    lambda y: y.cauchy_(),
    lambda y: y.random_(),
    lambda y: y.random_(1, 3),
    lambda y: y.uniform_(),
    lambda y: torch.randn(4, 5, out=y),
    lambda y: torch.nn.init.trunc_normal_(y),
    lambda y: y.cumsum_(0),
    lambda y: torch.cumsum(zeros(4, 5), 0, out=y),
    lambda y: torch.softmax(zeros(4, 5), 0, out=y),
    lambda y: torch.sort(zeros(4, 5), out=(y, zeros(4, 5, dtype=torch.int64))),
    lambda y: y.put_(torch.zeros(2, device="cuda", dtype=torch.int64), zeros(2)),
    lambda y: y.index_put_((torch.arange(2, device="cuda"),), zeros(2, 5), accumulate=True),
    lambda y: y.masked_scatter_(torch.ones(4, 5, device="cuda", dtype=torch.bool), zeros(4, 5)),
    lambda y: F.relu_(y),
    lambda y: F.hardtanh_(y),
    lambda y: F.rrelu_(y),
    lambda y: y.nan_to_num_(),
    lambda y: y.logical_and_(zeros(4, 5)),
    lambda y: y.bitwise_not_(),
    lambda y: y.renorm_(2, 0, 1),
    lambda y: y.addr_(zeros(4), zeros(5)),
    lambda y: torch._foreach_add_([y], 1),
    lambda y: torch._foreach_mul_([zeros(4, 5), y], [zeros(4, 5), zeros(4, 5)]),
    lambda y: torch._foreach_sqrt_([y]),
    lambda y: torch._foreach_copy_([y], [zeros(4, 5)]),
    lambda y: torch.mm(zeros(4, 5), zeros(5, 5), out=y),
    lambda y: torch.addmm(zeros(4, 5), zeros(4, 5), zeros(5, 5), out=y),
    lambda y: y.addmm_(zeros(4, 5), zeros(5, 5)),
    lambda y: torch.bmm(zeros(2, 4, 5), zeros(2, 5, 5), out=y.expand(2, 4, 5)),
    lambda y: torch.abs(zeros(4, 5), out=y),
    lambda y: torch.where(zeros(4, 5) > 0, zeros(4, 5), zeros(4, 5), out=y),
    lambda y: torch.stack([zeros(5)] * 4, out=y),
]


@pytest.mark.parametrize("number", range(len(WITHINS)))
def test_writing_into_an_expanded_tensor(number):
    assert raised(lambda: WITHINS[number](zeros(5).expand(4, 5))) == WITHIN


def test_writing_into_an_expanded_tensor_with_values():
    assert raised(lambda: zeros(5).expand(4, 5).copy_(zeros(4, 5)), values=True) == WITHIN
    assert raised(lambda: zeros(5).expand(4, 5).normal_(), values=True) == WITHIN


@pytest.mark.filterwarnings("ignore:Use of")
def test_writing_as_pytorch_allows():
    with labkit.simulated_gpu("H100"):
        y = zeros(5).expand(4, 5)
        y[:] = 1
        y.zero_()
        torch._foreach_zero_([y])
        F.threshold_(y, 1, 2)
        y.masked_fill_(y > 0, 1)
        y[torch.arange(2, device="cuda")] = zeros(2, 5)
        torch.sum(zeros(4, 5, 3), 2, out=y)
        torch.bmm(zeros(2, 4, 5), zeros(2, 5, 5), out=zeros(1, 4, 5).expand(2, 4, 5))
        windows = zeros(5).as_strided((3, 3), (1, 1))  # too hard to tell
        windows.copy_(zeros(3, 3))
        windows.normal_()
        torch.mm(zeros(3, 3), zeros(3, 3), out=windows)
