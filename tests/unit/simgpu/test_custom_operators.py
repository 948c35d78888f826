"""Operators that a program makes with torch.library.custom_op: their own Python runs, as it does on CUDA."""

import warnings

import pytest
import torch

import simgpu
from simgpu import simulated_gpu
from simgpu.errors import NotModelledError, NoValueError

SEEN = []


@torch.library.custom_op("custom_test::spread", mutates_args=())
def spread(x: torch.Tensor, wide: int) -> torch.Tensor:
    SEEN.append((str(x.device), x.is_cuda))
    apart = torch.empty(wide, x.shape[-1], device=x.device, dtype=torch.float32)  # only inside
    return x.float().sum(0) + apart.sum(0)


@spread.register_fake
def _(x, wide):
    return torch.empty(x.shape[-1])


@spread.register_autograd
def _(ctx, grad):
    return grad.expand(3, -1), None


@torch.library.custom_op("custom_test::through_numpy", mutates_args=())
def through_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.cpu().numpy() * 2).to(x.device) if x.nonzero().shape[0] else x.clone()


@through_numpy.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("custom_test::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero().float()


@torch.library.custom_op("custom_test::filled", mutates_args=("x",))
def filled(x: torch.Tensor) -> None:
    x.add_(torch.ones_like(x))


def told(action):
    with warnings.catch_warnings(record=True) as caught, simgpu.simulated_gpu("H100"):
        warnings.simplefilter("always")
        result = action()
    return [str(one.message) for one in caught if issubclass(one.category, simgpu.IncompleteEstimateWarning)], result


@pytest.mark.parametrize("grad", [False, True])
def test_what_is_made_inside_takes_memory(grad):
    """Figures of PyTorch's CUDA host code under stub libraries."""

    def action():
        x = torch.zeros(3, 1000, dtype=torch.bfloat16).cuda().requires_grad_(grad)
        torch.cuda.reset_peak_memory_stats()
        y = torch.ops.custom_test.spread(x, 2000) if grad else spread(x, 2000)
        assert y.requires_grad is grad and (y.device.type, y.dtype) == ("cuda", torch.float32)
        found = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        if grad:
            y.sum().backward()
            assert x.grad.shape == x.shape
        return found

    said, (now, peak) = told(action)
    assert (said, now, peak) == ([], 10240, 24792064)
    assert SEEN[-1] == ("cuda:0", True)


def test_what_asks_for_values_runs_as_its_shapes_and_says_so():
    said, result = told(lambda: tuple(through_numpy(torch.rand(8, 8, device="cuda")).shape))
    assert result == (8, 8)
    assert len(said) == 1 and "custom_test::through_numpy exclude" in said[0]


def test_without_shapes_the_reason_is_raised():
    with simgpu.simulated_gpu("H100"), pytest.raises(simgpu.errors.NoValueError, match="depends on the values"):
        without_fake(torch.rand(8, 8, device="cuda"))


def test_what_is_written_in_place_stays_where_it_is():
    def action():
        x = torch.zeros(1000, device="cuda")
        filled(x)
        return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()

    assert told(action) == ([], (4096, 8192))


# Operators of libraries whose results have sizes that depend on values


@pytest.fixture
def kept():
    """An operator with a kernel for the CPU that keeps the positive elements, and a fake kernel that cannot know."""
    with torch.library._scoped_library("tests_of_values", "FRAGMENT") as library:
        library.define("keep(Tensor x) -> (Tensor, Tensor)")
        library.impl("keep", lambda x: (x[x > 0], (x > 0).nonzero()), "CPU")

        def fake(x):
            n = torch.library.get_ctx().new_dynamic_size(min=1)
            return x.new_empty(n), x.new_empty((n, 1), dtype=torch.long)

        torch.library.register_fake("tests_of_values::keep", fake, lib=library)
        yield torch.ops.tests_of_values.keep


def test_with_values_the_kernel_of_the_cpu_decides_the_sizes(kept):
    with simulated_gpu("T4", values=True):
        x = torch.tensor([1.0, -1.0, 2.0] * 1000, device="cuda")
        before = torch.cuda.memory_allocated()
        values, places = kept(x)
        assert (values.shape, places.shape) == ((2000,), (2000, 1)) and values.is_cuda
        assert torch.cuda.memory_allocated() - before == 8192 + 16384  # 2,000 of 4 and of 8 bytes, in blocks of 512
        assert values.tolist() == [1.0, 2.0] * 1000


def test_known_values_are_enough(kept):
    with simulated_gpu("T4"):
        assert kept(torch.ones(4, device="cuda"))[0].shape == (4,)


def test_without_values_it_is_refused_by_name_or_a_stand_in_decides(kept):
    with simulated_gpu("T4"), pytest.raises(NoValueError, match=r"tests_of_values.keep.*values=True"):
        kept(torch.randn(4, device="cuda"))
    shapes = []
    report = simgpu.run(lambda: shapes.extend(one.shape for one in kept(torch.randn(4, device="cuda"))), gpu="T4")
    assert shapes == [(1,), (1, 1)]  # the smallest that the fake kernel allows
    assert [(what, at_least) for what, _, _, at_least in report.sizes] == [("tests_of_values::keep", True)]


def test_an_operator_without_shapes_runs_with_values_and_is_refused_without():
    with torch.library._scoped_library("tests_of_values", "FRAGMENT") as library:
        library.define("halve(Tensor x) -> Tensor")
        library.impl("halve", lambda x: x[::2].clone(), "CPU")
        with simulated_gpu("T4", values=True):
            assert torch.ops.tests_of_values.halve(torch.arange(5.0, device="cuda")).tolist() == [0, 2, 4]
        with simulated_gpu("T4"), pytest.raises(NotModelledError, match=r"register_fake.*--values"):
            torch.ops.tests_of_values.halve(torch.randn(4, device="cuda"))


# What libraries register for autocast("cuda")


@pytest.fixture
def twice():
    @torch.library.custom_op("tests_of_autocast::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda ctx, grad: grad * 2)
    return twice


def test_what_was_registered_for_autocast_is_followed(twice):
    """The oracle: float32, and as they are for what is not cast."""
    torch.library.register_autocast("tests_of_autocast::twice", "cuda", torch.float32)
    with simulated_gpu("T4"):
        x = torch.randn(4, 4, device="cuda", dtype=torch.float16, requires_grad=True)
        with torch.autocast("cuda"):
            y = twice(x)
            wide, whole = twice(x.double()), twice(torch.ones(2, device="cuda").half())
        assert (y.dtype, wide.dtype, whole.dtype) == (torch.float32, torch.float64, torch.float32)
        y.sum().backward()
        assert x.grad is not None and x.grad.dtype == torch.float16
        assert twice(x).dtype == torch.float16
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("tests_of_autocast::twice", "AutocastPrivateUse1")


def test_what_is_registered_while_a_region_was_open_before(twice):
    with simulated_gpu("T4"):
        x = torch.randn(4, 4, device="cuda")
        with torch.autocast("cuda"):
            assert twice(x).dtype == torch.float32
        torch.library.register_autocast("tests_of_autocast::twice", "cuda", torch.float16)
        with torch.autocast("cuda"):
            assert twice(x).dtype == torch.float16


def test_a_kernel_that_casts_its_result_back():
    """As torchvision's roi_align does: float32 inside, and the dtype of the input outside."""
    with torch.library._scoped_library("tests_of_autocast", "FRAGMENT") as library:
        library.define("half_of(Tensor x, Tensor[] more) -> Tensor")
        seen = []

        def half_of(x, more):
            seen.append((x.dtype, [one.dtype for one in more]))
            return x / 2

        def cast(keys, x, more):
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)):
                wide = [one.float() if one.is_cuda else one for one in more]
                return torch.ops.tests_of_autocast.half_of(x.float(), wide).to(x.dtype)

        library.impl("half_of", half_of, "CompositeExplicitAutograd")
        library.impl("half_of", cast, "AutocastCUDA", with_keyset=True)
        with simulated_gpu("T4"), torch.autocast("cuda"):
            x = torch.randn(4, device="cuda", dtype=torch.bfloat16)
            assert torch.ops.tests_of_autocast.half_of(x, [x, x]).dtype == torch.bfloat16
        assert seen == [(torch.float32, [torch.float32] * 2)]
