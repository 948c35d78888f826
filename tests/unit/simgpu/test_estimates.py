"""The clock's estimate ends no legal call: operators whose operations torch.utils.flop_counter counts, called oddly."""

import pytest
import torch
from torch.utils.flop_counter import flop_registry

import simgpu
from simgpu.device.machine import current
from simgpu.dispatch import costs

aten = torch.ops.aten
HALF = torch.bfloat16


def on(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="cuda")


def odd_and_empty(make):
    """A call with ordinary sizes, with odd ones, with one, and with none: make(n) gives (operator, named arguments)."""
    return [make(n) for n in (8, 7, 1, 0)]


def convolution(n, transposed=False):
    weight = on(4, 4, 3)
    return aten.convolution.default, {
        "input": on(n, 4, 9), "weight": weight, "bias": None, "stride": [1], "padding": [1], "dilation": [1],
        "transposed": transposed, "output_padding": [0], "groups": 1,
    }  # fmt: skip


def convolution_backward(n):
    _, given = convolution(n)
    del given["bias"]
    return aten.convolution_backward.default, {
        "grad_output": on(n, 4, 9), **given, "bias_sizes": [4], "output_mask": [True, True, False],
    }  # fmt: skip


def attention(operator, dtype, **more):
    def make(n):
        return operator, {name: on(2, 2, n, 16, dtype=dtype) for name in ("query", "key", "value")} | more

    return make


CALLS = {
    aten.mm: lambda n: (aten.mm.default, {"self": on(n, 5), "mat2": on(5, 3)}),
    aten.addmm: lambda n: (aten.addmm.default, {"self": on(3), "mat1": on(n, 5), "mat2": on(5, 3), "beta": 2}),
    aten.bmm: lambda n: (aten.bmm.default, {"self": on(n, 2, 5), "mat2": on(n, 5, 3)}),
    aten.baddbmm: lambda n: (
        aten.baddbmm.default, {"self": on(n, 2, 3), "batch1": on(n, 2, 5), "batch2": on(n, 5, 3), "alpha": 2},
    ),
    aten._scaled_mm: lambda n: (
        aten._scaled_mm.default,
        {
            "self": on(16 * n, 32, dtype=torch.float8_e4m3fn), "mat2": on(16, 32, dtype=torch.float8_e4m3fn).t(),
            "scale_a": on(()), "scale_b": on(()), "out_dtype": HALF,
        },
    ),
    aten.convolution: convolution,
    aten.convolution_backward: convolution_backward,
    aten._scaled_dot_product_flash_attention: attention(
        aten._scaled_dot_product_flash_attention.default, HALF, is_causal=True
    ),
    aten._scaled_dot_product_efficient_attention: attention(
        aten._scaled_dot_product_efficient_attention.default, torch.float32, attn_bias=None, compute_log_sumexp=False
    ),
    aten._scaled_dot_product_cudnn_attention: attention(
        aten._scaled_dot_product_cudnn_attention.default, HALF, attn_bias=None, compute_log_sumexp=True
    ),
}  # fmt: skip
# Backwards of attention, called by autograd; and operators that programs do not call, or that are refused by name.
BY_AUTOGRAD = {
    aten._scaled_dot_product_flash_attention_backward, aten._scaled_dot_product_efficient_attention_backward,
    aten._scaled_dot_product_cudnn_attention_backward, aten._flash_attention_backward,
    aten._efficient_attention_backward,
}  # fmt: skip
INSIDE = {aten._convolution, aten.cudnn_convolution, aten.convolution_overrideable, aten._slow_conv2d_forward}
ALONE = {aten._flash_attention_forward, aten._efficient_attention_forward}  # compared or refused: docs/operators.md


@pytest.fixture
def gpu():
    with simgpu.simulated_gpu("H100"), torch.backends.cudnn.flags(enabled=False):
        yield current()


def positional(operator, given):
    schema = operator._schema.arguments
    places = [one.name for one in schema if not one.kwarg_only]
    last = max(place for place, name in enumerate(places) if name in given)
    args = [given.get(one.name, one.default_value) for one in schema[: last + 1]]
    return args, {name: value for name, value in given.items() if name not in places}


@pytest.mark.filterwarnings("ignore::simgpu.IncompleteEstimateWarning")
@pytest.mark.parametrize("packet", CALLS, ids=str)
def test_odd_empty_and_named(gpu, packet):
    """The same estimate, however the arguments are given."""
    for operator, given in odd_and_empty(CALLS[packet]):
        args, rest = positional(operator, given)
        named = operator(**given)
        placed = operator(*args, **rest)
        first, second = (outputs if isinstance(outputs, tuple) else (outputs,) for outputs in (named, placed))
        by_name = costs.cost(gpu.spec, operator, (), given, first)
        by_place = costs.cost(gpu.spec, operator, args, rest, second)
        assert by_name == by_place
        assert by_name[1] >= 0
        if all(tensor.numel() for tensor in given.values() if isinstance(tensor, torch.Tensor)):
            assert costs.operations(operator, (), given, first) == costs.operations(operator, args, rest, second) > 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 7, 33])
def test_attention_of_odd_lengths_and_its_gradient(gpu, causal, length):
    query, key, value = (on(2, 2, length, 24, dtype=HALF).requires_grad_() for _ in range(3))
    out = torch.nn.functional.scaled_dot_product_attention(query=query, key=key, value=value, is_causal=causal)
    out.sum().backward()
    assert [one.grad.shape for one in (query, key, value)] == [query.shape] * 3


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_without_a_batch_and_with_groups(gpu, transposed):
    kind = torch.nn.functional.conv_transpose2d if transposed else torch.nn.functional.conv2d
    for shape in ((4, 7, 9), (0, 4, 7, 9), (1, 4, 3, 3)):
        x = on(*shape).requires_grad_()
        kind(input=x, weight=on(4, 2, 3, 3).requires_grad_(), groups=2, stride=2, padding=1).sum().backward()
        assert x.grad.shape == x.shape


def test_every_counted_operator_is_called_here():
    counted = {one for one in flop_registry if isinstance(one, torch._ops.OpOverloadPacket)}
    assert counted <= CALLS.keys() | BY_AUTOGRAD | INSIDE | ALONE


@pytest.mark.parametrize("packet", sorted(BY_AUTOGRAD | INSIDE | ALONE, key=str), ids=str)
def test_a_formula_that_cannot_read_a_call_says_nothing(gpu, packet):
    """Whatever a formula does with what it is given, the estimate is of the bytes alone."""
    operator = getattr(packet, packet.overloads()[0])
    x = on(7)
    tensors = {one.name: x for one in operator._schema.arguments if str(one.type) == "Tensor"}
    for args, kwargs in (((), tensors), (tuple(tensors.values()), {})):
        kernels, work = costs.cost(gpu.spec, operator, args, kwargs, (x,))
        assert kernels >= 0 and 0 <= work < 1e-6
