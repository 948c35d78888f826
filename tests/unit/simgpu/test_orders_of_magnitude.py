"""Times of legal calls that no model of the course makes: each of an order that a real GPU could have."""

from math import isfinite

import pytest
import torch

import labkit
import simgpu
from simgpu.clock import achieved_rates, rates
from simgpu.clock.workers import WorkerHost
from simgpu.device.machine import current
from simgpu.dispatch import costs, kernel_work
from simgpu.gpus.specs import SPECS, spec

aten = torch.ops.aten
MODERN = ("RTX 4090", "RTX 5090", "L4", "L40S", "H100", "H200", "B200")  # they multiply 8-bit floats


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def work(name, operator, *args, **kwargs):
    """Seconds of the device, beside fixed costs."""
    outputs = operator(*args, **kwargs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return costs.cost(spec(name), operator, args, kwargs, outputs)[1]


@pytest.mark.parametrize("name", SPECS)
def test_no_product_is_faster_than_its_units(name):
    n, gpu = 4096, spec(name)
    rate = {}
    for dtype in (torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128):
        rate[dtype] = 2 * n**3 / work(name, aten.mm.default, meta(n, n, dtype=dtype), meta(n, n, dtype=dtype))
    assert rate[torch.complex64] == pytest.approx(rate[torch.float32] / 4)
    assert rate[torch.complex128] == pytest.approx(rate[torch.float64] / 4)
    whole = meta(n, n, dtype=torch.int8)
    integers = 2 * n**3 / work(name, aten._int_mm.default, whole, whole)
    assert 0.5 * rates.COMPUTE < integers / gpu.peak_flops.get("int8", achieved_rates.rate(gpu, "float32")) <= 1
    short = meta(n, n, dtype=torch.float8_e4m3fn)
    scaled = (short, short.t(), meta(), meta(), None, None, torch.bfloat16)
    output = (meta(n, n, dtype=torch.bfloat16),)
    seconds = costs.cost(gpu, aten._scaled_mm.default, scaled, {}, output)[1]
    if name in MODERN:
        assert 1.2 < 2 * n**3 / seconds / rate[torch.float16] <= 2
    else:
        assert not achieved_rates.known(gpu, achieved_rates.FLOAT8)  # PyTorch refuses the call


def test_groups_and_packed_weights_are_products():
    half = torch.bfloat16
    tokens, experts = meta(8192, 1024, dtype=half), meta(8, 1024, 4096, dtype=half)
    ends = torch.zeros(8, dtype=torch.int32, device="meta")
    one = work("H100", aten.mm.default, tokens, experts[0])
    args = tokens, experts, ends
    assert (
        costs.operations(aten._grouped_mm.default, args, {}, (meta(8192, 4096, dtype=half),)) == 2 * 8192 * 1024 * 4096
    )
    seconds = costs.cost(spec("H100"), aten._grouped_mm.default, args, {}, (meta(8192, 4096, dtype=half),))[1]
    assert seconds == pytest.approx(one, rel=0.1)
    along = meta(1024, 8192, dtype=half), meta(8192, 4096, dtype=half), ends  # groups share the sum
    assert (
        costs.operations(aten._grouped_mm.default, along, {}, (meta(8, 1024, 4096, dtype=half),))
        == 2 * 8192 * 1024 * 4096
    )
    added = meta(8, 16), meta(5, 8, 32), meta(5, 32, 16)
    assert costs.operations(aten.addbmm.default, added, {}, (meta(8, 16),)) == 5 * 2 * 8 * 32 * 16


n = 2048
FACTORIZED = {  # operations over n³
    aten.linalg_cholesky_ex.default: ((meta(n, n),), 1 / 3),
    aten.linalg_lu_factor_ex.default: ((meta(n, n),), 2 / 3),
    aten._linalg_solve_ex.default: ((meta(n, n), meta(n, n)), 2 / 3 + 2),
    aten.linalg_solve_triangular.default: ((meta(n, n), meta(n, n)), 1),
    aten.cholesky_solve.default: ((meta(n, n), meta(n, n)), 2),
    aten.linalg_inv_ex.default: ((meta(n, n),), 2),
    aten.linalg_qr.default: ((meta(n, n),), 8 / 3),
    aten._linalg_eigh.default: ((meta(n, n),), 9),
    aten._linalg_svd.default: ((meta(n, n),), 26),
    aten.linalg_eig.default: ((meta(n, n),), 25),
}


@pytest.mark.parametrize("operator", FACTORIZED, ids=str)
def test_factorizations_have_the_operations_of_textbooks(operator):
    args, cubes = FACTORIZED[operator]
    named = {"upper": True} if "triangular" in operator._schema.name else {}
    outputs = operator(*args, **named)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert costs.operations(operator, args, named, outputs) == pytest.approx(cubes * n**3, rel=0.01)
    seconds = costs.cost(spec("A100-80GB"), operator, args, named, outputs)[1]
    assert seconds >= cubes * n**3 / achieved_rates.rate(spec("A100-80GB"), "float32") * 0.99
    batch = tuple(one.expand(3, *one.shape) for one in args)
    assert costs.operations(operator, batch, named, outputs) >= 2.9 * cubes * n**3 or "solve" in operator._schema.name


@pytest.mark.parametrize("packet", [*kernel_work.PRODUCTS, *kernel_work.FACTORIZATIONS], ids=str)
def test_a_count_that_cannot_read_a_call_says_nothing(packet):
    operator = getattr(packet, packet.overloads()[0])
    assert costs.operations(operator, (), {}, ()) == 0


def test_a_factorization_takes_no_tf32():
    """cuSOLVER computes in the type that it is given; products of other operators may take it."""
    matrix, batch, times = meta(512, 512), meta(8, 512, 512), []
    with simgpu.simulated_gpu("A100-80GB"):
        before = torch.backends.cuda.matmul.allow_tf32
        for torch.backends.cuda.matmul.allow_tf32 in (False, True):
            factorization = work("A100-80GB", aten.linalg_cholesky_ex.default, matrix)
            times.append((factorization, work("A100-80GB", aten.addbmm.default, matrix, batch, batch)))
        torch.backends.cuda.matmul.allow_tf32 = before
    (exact, products), (same, faster) = times
    assert exact == same > 0 and products > 2 * faster


def test_a_sort_passes_through_memory_for_each_8_bits():
    rows = meta(2**24)
    pair = 4 + 8
    expected = 2**24 * (8 + 4 + 4 * 2 * pair) / achieved_rates.bandwidth(spec("A100-80GB"))
    assert work("A100-80GB", aten.sort.default, rows) == pytest.approx(expected)
    short = work("A100-80GB", aten.sort.default, meta(2**14, 2**10))
    assert short == pytest.approx(
        2 * 2**24 * pair / achieved_rates.bandwidth(spec("A100-80GB"))
    )  # in shared memory: once
    assert 4 * short < expected
    few = work("A100-80GB", aten.sort.default, meta(16, 2**19))
    many = work("A100-80GB", aten.sort.default, meta(2**10, 2**14))
    assert short < few < 2 * expected and short < many < 2 * expected
    halves = work("A100-80GB", aten.sort.default, meta(2**24, dtype=torch.float16))
    assert halves < 0.6 * expected


def test_the_largest_of_a_long_row_takes_several_passes_and_of_a_short_one_one():
    rate = achieved_rates.bandwidth(spec("A100-80GB"))
    long = work("A100-80GB", aten.topk.default, meta(2**24), 10)
    assert long == pytest.approx(5 * 2**26 / rate, rel=1e-3)
    short = work("A100-80GB", aten.topk.default, meta(2**20, 16), 2)
    assert short == pytest.approx((2**26 + 2**21 * 12) / rate, rel=1e-3)


def test_a_single_row_of_kthvalue_has_one_multiprocessor():
    one = work("A100-80GB", aten.kthvalue.default, meta(1, 2**24), 5)
    many = work("A100-80GB", aten.kthvalue.default, meta(2**10, 2**14), 5)
    assert one == pytest.approx(108 * many, rel=0.01)
    assert work("A100-80GB", aten.median.dim, meta(1, 2**24), 1) == pytest.approx(one)


@pytest.mark.parametrize("operator", ["sort", "topk", "kthvalue", "median"])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7, 5000), (200, 5000)])
def test_any_shape_has_a_time(operator, shape):
    with simgpu.simulated_gpu("H100"):
        x = torch.empty(shape, device="cuda")
        more = {"topk": (1,), "kthvalue": (1,), "median": (-1,)}.get(operator, ())
        with labkit.stopwatch() as timing:
            getattr(x, operator)(*more)
        assert 0 < timing.seconds < 1


def test_a_permutation_is_sorted_numbers():
    with simgpu.simulated_gpu("A100-80GB"):
        with labkit.stopwatch() as timing:
            torch.randperm(2**24, device="cuda")
        written = 8 * 2**24 / achieved_rates.bandwidth(spec("A100-80GB"))
        assert 10 * written < timing.seconds < 100 * written
        torch.randperm(0, device="cuda")
    assert {"sort", "topk", "randperm"} <= kernel_work.OPERATORS


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_the_host_s_work_ends(seconds):
    with labkit.simulated_gpu("T4"), pytest.raises(ValueError, match="cannot work"):
        labkit.host_work(seconds)
    with pytest.raises(ValueError, match="cannot work"):
        WorkerHost().pass_time(seconds)
    with labkit.simulated_gpu("T4"):
        labkit.host_work(1e-3)
        assert isfinite(current().clock.host)


def test_copies_are_as_fast_as_somebody_measured_them():
    for key, measured in achieved_rates.COPIES.items():
        assert 0.5 < measured * 1e9 / spec(key).bandwidth < rates.BANDWIDTH
        assert achieved_rates.bandwidth(spec(key)) == measured * 1e9
    assert achieved_rates.bandwidth(spec("A100-80GB")) == spec("A100-80GB").bandwidth * rates.BANDWIDTH
    gib = meta(2**28)
    assert work("RTX 5090", aten.clone.default, gib) == pytest.approx(2 * 2**30 / 1490e9)
