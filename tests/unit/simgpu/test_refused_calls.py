"""Calls that CUDA refuses for numbers, shapes, or dtypes of results, and meta tensors take; texts are the oracle's."""

import pytest
import torch
import torch.nn.functional as F

import labkit


def zeros(*shape, **kinds):
    return torch.zeros(*shape, device="cuda", **kinds)


LONG = {"dtype": torch.int64}
NO_DIM = (
    "(): Expected reduction dim to be specified for input.numel() == 0. "
    "Specify the reduction dim with the 'dim' argument."
)
SUBTRACTION = (
    "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the "
    "`~` or `logical_not()` operator instead."
)


def elsewhere(name: str, where: str, others: str, wrapper: str) -> str:
    return (
        f"Expected all tensors to be on the same device, but got {name} is on {where}, different from other tensors on "
        f"{others} (when checking argument in method wrapper_CUDA_{wrapper})"
    )


def decrement():
    x = zeros(3)
    x -= True


def backward_of_scores(*order):
    x = torch.randn(2, 4, 5, 3, device="cuda").permute(order).requires_grad_()
    F.nll_loss(x, zeros(x.shape[0], *x.shape[2:], dtype=torch.int64)).backward()


def lists():
    return [zeros(3, 4), zeros(4)]


HALF = torch.tensor(2.5)
CASES = {
    "max": (lambda: zeros(0).max(), RuntimeError, "max" + NO_DIM),
    "min": (lambda: zeros(0, 3, **LONG).min(), RuntimeError, "min" + NO_DIM),
    "median": (lambda: zeros(0).median(0), IndexError, "median(): Expected reduction dim 0 to have non-zero size."),
    "median, last": (
        lambda: zeros(3, 0).median(-1),
        IndexError,
        "median(): Expected reduction dim 1 to have non-zero size.",
    ),
    "nanmedian": (
        lambda: zeros(0).nanmedian(0),
        IndexError,
        "median(): Expected reduction dim 0 to have non-zero size.",
    ),
    "mode": (lambda: zeros(0).mode(), IndexError, "mode(): Expected reduction dim 0 to have non-zero size."),
    "kthvalue": (
        lambda: zeros(3, 0).kthvalue(1),
        IndexError,
        "kthvalue(): Expected reduction dim 1 to have non-zero size.",
    ),
    "minus True": (lambda: zeros(3) - True, RuntimeError, SUBTRACTION),
    "True minus": (lambda: True - zeros(3, **LONG), RuntimeError, SUBTRACTION),
    "rsub": (lambda: torch.rsub(zeros(3), True), RuntimeError, SUBTRACTION),
    "decrement": (decrement, RuntimeError, SUBTRACTION),
    "sub, out": (lambda: torch.sub(zeros(3), True, out=zeros(3)), RuntimeError, SUBTRACTION),
    "two bools": (
        lambda: zeros(3, dtype=torch.bool) - True,
        RuntimeError,
        "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
        "operator instead.",
    ),
    "logaddexp": (
        lambda: torch.logaddexp(zeros(3), HALF),
        RuntimeError,
        elsewhere("other", "cpu", "cuda:0", "logaddexp"),
    ),
    "logaddexp2, first": (
        lambda: torch.logaddexp2(HALF, zeros(3)),
        RuntimeError,
        elsewhere("other", "cuda:0", "cpu", "logaddexp2"),
    ),
    "logaddexp, out": (
        lambda: torch.logaddexp(zeros(3), HALF, out=zeros(3)),
        RuntimeError,
        elsewhere("other", "cpu", "cuda:0", "logaddexp_out_out"),
    ),
    "clamp": (lambda: zeros(3).clamp_(HALF), RuntimeError, elsewhere("min", "cpu", "cuda:0", "clamp__Tensor")),
    "gcd": (
        lambda: torch.gcd(zeros(3, **LONG), torch.tensor(2)),
        RuntimeError,
        elsewhere("other", "cpu", "cuda:0", "gcd"),
    ),
    "complex": (
        lambda: torch.complex(zeros(3), HALF),
        RuntimeError,
        elsewhere("imag", "cpu", "cuda:0", "out_complex_out"),
    ),
    "addmm": (
        lambda: torch.addmm(HALF, zeros(3, 3), zeros(3, 3)),
        RuntimeError,
        elsewhere("mat1", "cuda:0", "cpu", "addmm"),
    ),
    "mm, out": (
        lambda: torch.mm(zeros(3, 3), torch.zeros(3, 3), out=zeros(3, 3)),
        RuntimeError,
        elsewhere("mat2", "cpu", "cuda:0", "mm_out_out"),
    ),
    "nll_loss, channels last": (lambda: backward_of_scores(0, 3, 1, 2), RuntimeError, "grad_input must be contiguous"),
    "nll_loss, transposed": (lambda: backward_of_scores(1, 0, 2, 3), RuntimeError, "grad_input must be contiguous"),
    "channel_shuffle": (
        lambda: F.channel_shuffle(zeros(2, 4, 5, 6).transpose(2, 3), 2),
        RuntimeError,
        "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
        "contiguous subspaces). Use .reshape(...) instead.",
    ),
    "randperm, bytes": (
        lambda: torch.randperm(257, device="cuda", dtype=torch.uint8),
        RuntimeError,
        "value cannot be converted to type uint8_t without overflow",
    ),
    "randperm, int16": (
        lambda: torch.randperm(70000, out=zeros(3, dtype=torch.int16)),
        RuntimeError,
        "value cannot be converted to type int16_t without overflow",
    ),
    "randperm, halves": (
        lambda: torch.randperm(2050, device="cuda", dtype=torch.float16),
        RuntimeError,
        "n cannot be greater than 2049 for Half type.",
    ),
    "foreach, too many": (
        lambda: torch._foreach_addcmul(lists(), lists(), lists(), torch.ones(3)),
        RuntimeError,
        "Expected length of scalars to match input of length 2 but got 3 instead.",
    ),
    "foreach, matrix": (
        lambda: torch._foreach_addcdiv_(lists(), lists(), lists(), torch.ones(2, 1)),
        RuntimeError,
        "Expected packed scalar Tensor to be of dimension 1. Got 2 instead.",
    ),
    "foreach, gaps": (
        lambda: torch._foreach_addcdiv_(lists(), lists(), lists(), torch.ones(4)[::2]),
        RuntimeError,
        "Expected scalars to be contiguous.",
    ),
    "foreach, on the GPU": (
        lambda: torch._foreach_addcmul(lists(), lists(), lists(), zeros(2)),
        RuntimeError,
        "Expected scalars to be on CPU, got cuda:0 instead.",
    ),
    "abs": (
        lambda: torch.abs(zeros(3), out=zeros(3, **LONG)),
        RuntimeError,
        "Found dtype Long but expected Float",
    ),
    "abs, complex": (
        lambda: torch.abs(zeros(3, dtype=torch.complex64), out=zeros(3, **LONG)),
        RuntimeError,
        "result type Float can't be cast to the desired output type Long",
    ),
    "nan_to_num": (
        lambda: torch.nan_to_num(zeros(3), out=zeros(3, dtype=torch.double)),
        RuntimeError,
        "nan_to_num: dtype of out: Double should be same as input: Float",
    ),
    "floor_divide": (
        lambda: torch.floor_divide(zeros(3), 2, out=zeros(3, **LONG)),
        RuntimeError,
        "result type Float can't be cast to the desired output type Long",
    ),
    "logit": (
        lambda: torch.logit(zeros(3), out=zeros(3, **LONG)),
        RuntimeError,
        "result type Float can't be cast to the desired output type Long",
    ),
    "take": (
        lambda: torch.take(zeros(3), zeros(1, **LONG), out=zeros(1, **LONG)),
        RuntimeError,
        "take(): self and out expected to have the same dtype, but got self.dtype = Float and out.dtype = Long",
    ),
    "where": (
        lambda: torch.where(zeros(3) > 0, zeros(3), zeros(3), out=zeros(3, **LONG)),
        RuntimeError,
        "Expected out type to be Float but got Long",
    ),
    "stack": (
        lambda: torch.stack([zeros(3)], out=zeros(1, 3, **LONG)),
        TypeError,
        "torch.cat(): input types can't be cast to the desired output type Long",
    ),
}


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_words(case, values):
    run, kind, words = CASES[case]
    with labkit.simulated_gpu("H100", values=values), pytest.raises(kind) as raised:
        run()
    assert str(raised.value) == words


def test_what_pytorch_takes():
    with labkit.simulated_gpu("H100"):
        assert zeros(3, 0).median(0).values.shape == (0,)
        assert zeros(0).median().isnan()
        assert (zeros(3) + True).shape == (3,)
        assert torch.maximum(zeros(3), HALF).shape == (3,)
        assert torch.randperm(256, device="cuda", dtype=torch.uint8).shape == (256,)
        assert torch.randperm(2049, device="cuda", dtype=torch.float16).shape == (2049,)
        assert torch.angle(zeros(3), out=zeros(3, dtype=torch.double)).dtype == torch.double
        assert F.channel_shuffle(zeros(0, 4, 5, 6).transpose(2, 3), 2).shape == (0, 4, 6, 5)
        backward_of_scores(0, 1, 2, 3)


def test_numbers_of_lists_in_a_tensor():
    """Each addcmul takes its own number, as it would from a list."""
    with labkit.simulated_gpu("H100", values=True):
        ones = [torch.ones(3, device="cuda"), torch.ones(2, device="cuda")]
        made = torch._foreach_addcmul(ones, ones, ones, torch.tensor([2.0, 3.0]))
        assert [one.tolist() for one in made] == [[3.0, 3.0, 3.0], [4.0, 4.0]]
        torch._foreach_addcdiv_(made, ones, ones, torch.tensor([1, 2]))
        assert [one.tolist() for one in made] == [[4.0, 4.0, 4.0], [6.0, 6.0]]


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (torch.float16, "torch.cuda.HalfTensor"),
        (torch.bfloat16, "CUDABFloat16Type"),
        (torch.complex64, "CUDAComplexFloatType"),
    ],
)
def test_the_type_of_what_was_modified_in_place(dtype, words):
    with labkit.simulated_gpu("H100"):
        y = torch.ones(40, 300, device="cuda", dtype=dtype, requires_grad=True) * 1
        z = y * y
        y.add_(1)
        with pytest.raises(RuntimeError) as raised:
            z.sum().abs().backward()
    assert f"modified by an inplace operation: [{words} [40, 300]], which is output 0 of" in str(raised.value)
