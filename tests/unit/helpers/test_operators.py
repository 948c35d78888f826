"""Operators of a piece of work: what each computes and moves, and the roofline over it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import labkit
from helpers.operators import least_times, operators
from helpers.rooflines import plot_roofline, roofline


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("A100-80GB") as gpu:
        yield gpu


def test_kinds_operations_and_bytes():
    x, w = torch.zeros(64, 32, device="cuda"), torch.zeros(32, 16, device="cuda")
    matmul, added, summed = operators(lambda: ((x @ w).add(1).t().sum(), x.view(-1)))
    assert matmul == ("mm", "matmul", 2 * 64 * 32 * 16, x.nbytes + w.nbytes, 4 * 64 * 16)
    assert added == ("add", "elementwise", 0, 4 * 64 * 16, 4 * 64 * 16)
    assert summed[:2] == ("sum", "reduction")
    assert summed.nbytes == 4 * 64 * 16 + 4


def test_backward_rows_and_what_is_overwritten():
    table, rows = torch.zeros(1000, 8, device="cuda"), torch.zeros(5, dtype=torch.long, device="cuda")
    (looked_up,) = operators(lambda: torch.nn.functional.embedding(rows, table))
    assert (looked_up.read, looked_up.written) == (5 * 8 + 4 * 5 * 8, 4 * 5 * 8)
    (zeroed,) = operators(table.zero_)
    assert (zeroed.read, zeroed.written) == (0, table.nbytes)
    x = torch.zeros(64, device="cuda", requires_grad=True)
    gradient = torch.zeros(64, device="cuda")
    backward = operators(lambda: torch.autograd.grad(x.relu(), x, gradient))
    assert [(one.name, one.read // 256, one.written // 256) for one in backward] == [
        ("relu", 1, 1),
        ("threshold_backward", 2, 1),
    ]


@pytest.mark.parametrize("name", ["A100-80GB", "T4", "H100"])
def test_the_roofline_is_the_clock_where_tensors_are_large(name):
    with labkit.simulated_gpu(name):
        bandwidth, peak = labkit.memory_rate(), labkit.product_rate(torch.float16)
        x = torch.zeros(8192, 8192, dtype=torch.float16, device="cuda")
        for work, bound in ((lambda: x + x[0], "memory"), (lambda: x @ x, "compute")):
            (one,) = operators(work)
            expected = roofline(one.flop, one.nbytes, peak, bandwidth)
            assert expected.bound == bound
            assert expected.seconds == pytest.approx(labkit.seconds(work, repeats=5), rel=0.1)
            row = least_times([one], peak, bandwidth).iloc[0]
            assert (row["ms"], row["bound"], row["name"]) == (1e3 * expected.seconds, bound, one.name)


positive = st.floats(1e-3, 1e15)


@given(positive, positive, positive, positive, st.floats(0, 1))
def test_a_roofline_is_the_longest_of_three(flop, nbytes, peak, bandwidth, launch):
    seconds, bound = roofline(flop, nbytes, peak, bandwidth, launch)
    times = {"compute": flop / peak, "memory": nbytes / bandwidth, "host": launch}
    assert seconds == times[bound] == max(times.values())


@pytest.mark.parametrize("given", [(1, 1, 0, 1), (1, 1, 1, -1), (-1, 1, 1, 1), (1, 1, 1, 1, -1)])
def test_what_is_no_roofline_is_refused(given):
    with pytest.raises(ValueError, match="roofline"):
        roofline(*given)


def test_a_figure_has_the_ridge_and_the_dots():
    dots = {"elementwise": {"add": (1 / 6, 3e11)}, "matmul": {"4096": (1365, 2.5e14)}}
    figure = plot_roofline(dots, 2.5e14, 1.8e12, "half precision")
    figure.canvas.draw()
    assert "139 FLOP per byte" in figure.description
    assert "add 0.167 FLOP per byte, 0.3 TFLOP/s" in figure.description
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"
    with pytest.raises(ValueError, match="above 0"):
        plot_roofline({"elementwise": {"add": (0, 1)}}, 1, 1)
