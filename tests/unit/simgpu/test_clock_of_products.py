"""How long products and attention take on the clock, and what the host waits for."""

from types import SimpleNamespace

import pytest
import torch

import simgpu
from simgpu.clock.clock import Clock
from simgpu.dispatch import costs
from simgpu.gpus.specs import spec

aten = torch.ops.aten


@pytest.fixture
def gpu():
    with simgpu.simulated_gpu("A100-80GB") as on:
        yield on


def test_a_product_takes_the_time_of_its_transpose():
    a100 = spec("A100-80GB")
    a, b = torch.empty(1, 4096, device="meta"), torch.empty(4096, 128, device="meta")
    found = [costs.cost(a100, aten.mm.default, pair, {}, (torch.mm(*pair),)) for pair in ((a, b), (b.t(), a.t()))]
    assert found[0] == found[1]


def test_attention_computes_fewer_operations_a_second_than_products():
    h100 = spec("H100")

    def rate(operator, args, outputs):
        return costs.operations(operator, args, {}, outputs) / costs.cost(h100, operator, args, {}, outputs)[1]

    x = torch.empty(8, 16, 4096, 128, dtype=torch.bfloat16, device="meta")
    w = torch.empty(8192, 8192, dtype=torch.bfloat16, device="meta")
    attention = rate(aten._scaled_dot_product_flash_attention.default, (x, x, x), (x,))
    assert 0 < attention < 0.9 * rate(aten.mm.default, (w, w), (w,))


@pytest.mark.parametrize(("batches", "shape"), [((), (64, 48)), ((8,), (64, 48)), ((1,), (16, 8))])
def test_the_clock_knows_how_deep_a_product_is(gpu, monkeypatch, batches, shape):
    asked, filled = [], costs.filled
    monkeypatch.setattr(costs, "filled", lambda *sizes: asked.append(sizes) or filled(*sizes))
    rows, columns = shape
    torch.matmul(torch.zeros(*batches, rows, 32, device="cuda"), torch.zeros(*batches, 32, columns, device="cuda"))
    assert asked == [(batches[0] if batches else 1, rows, columns, 32, 108)]


def test_what_a_compiled_region_has_begun_runs_while_the_host_waits_for_a_batch():
    clock, flushed = Clock(spec("A100-80GB")), []
    clock.region = SimpleNamespace(flush=lambda: flushed.append(clock.host))
    clock.wait_for_batch(1.0)
    assert flushed == [0.0] and clock.host == 1.0
