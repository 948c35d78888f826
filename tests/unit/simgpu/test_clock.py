"""The clock: times grow as the cost model says, and host, streams, events and copies keep their order."""

import warnings
from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import labkit
from simgpu.clock import achieved_rates, rates
from simgpu.clock.clock import KERNELS, TO_GPU, TO_HOST, Clock, Engine
from simgpu.device.machine import current
from simgpu.dispatch import costs
from simgpu.gpus.specs import SPECS, spec

A100 = spec("A100-80GB")
MiB = 2**20
LEAST = rates.OPERATOR + rates.LAUNCH + rates.KERNEL  # of one operator, from an idle host to the end of its kernel


@pytest.fixture
def gpu():
    with labkit.simulated_gpu("A100-80GB") as gpu:
        yield gpu


def device_seconds(work) -> float:
    """How long the device takes for what `work` issues, host and fixed costs left out: the roofline's part."""
    clock = current().clock
    torch.cuda.synchronize()
    engine = clock._engines[KERNELS]
    before, taken = engine.take, []
    Recorded = type("Recorded", (), {"take": lambda self, *a: taken.append(a[1]) or before(*a)})
    clock._kernels = Recorded()
    work()
    clock._kernels = engine
    return sum(taken)


# Timelines


def test_an_engine_fills_gaps():
    engine = Engine()
    assert engine.take(0.0, 1.0, 0.0) == 0.0
    assert engine.take(5.0, 1.0, 0.0) == 5.0  # waits for something: 1 to 5 is free
    assert engine.take(0.0, 2.0, 0.0) == 1.0
    assert engine.take(0.0, 2.0, 0.0) == 3.0
    assert engine.take(0.0, 0.5, 0.0) == 6.0
    assert engine.free == 6.5


def test_an_engine_forgets_gaps_that_are_over():
    engine = Engine()
    engine.take(5.0, 1.0, 0.0)
    assert engine.take(6.0, 1.0, 6.0) == 6.0
    assert engine.take(9.0, 1.0, 8.0) == 9.0
    assert list(engine._gaps) == [(7.0, 9.0)]


def test_what_is_left_of_a_gap_is_filled_too():
    engine = Engine()
    assert engine.take(10.0, 1.0, 0.0) == 10.0  # 0 to 10 is free
    assert engine.take(2.0, 3.0, 0.0) == 2.0  # 0 to 2 and 5 to 10 are
    assert engine.take(0.0, 4.0, 0.0) == 5.0  # 9 to 10 is, too
    assert engine.take(0.0, 1.5, 0.0) == 0.0
    assert engine.take(0.0, 1.0, 0.0) == 9.0
    assert engine.take(0.0, 1.0, 0.0) == 11.0


def test_an_operator_of_two_kernels_is_two_launches():
    one, two = Clock(A100), Clock(A100)
    one.launch(0, 1.0)
    two.launch(0, 1.0, kernels=2)
    assert two.host - one.host == pytest.approx(rates.LAUNCH)
    assert two.done() - one.done() == pytest.approx(rates.KERNEL)


def test_the_host_runs_ahead_until_it_waits():
    clock = Clock(A100)
    clock.launch(0, 1.0)
    assert clock.host == rates.OPERATOR + rates.LAUNCH
    assert clock.done() == pytest.approx(1 + LEAST)
    clock.synchronize()
    assert clock.host == pytest.approx(1 + LEAST + rates.SYNCHRONIZE)


def test_the_device_waits_for_a_slow_host():
    clock = Clock(A100)
    for _ in range(10):
        clock.launch(0, 0.0)
    assert clock.done() == pytest.approx(10 * (rates.OPERATOR + rates.LAUNCH) + rates.KERNEL)


def test_the_queue_of_launches_is_full_at_some_point():
    clock = Clock(A100)
    for _ in range(rates.QUEUE + 1):
        clock.launch(0, 1.0)
    assert clock.host == pytest.approx(1.0 + LEAST)  # the first kernel's end
    assert clock.done() > rates.QUEUE


def test_kernels_of_two_streams_share_the_gpu():
    clock = Clock(A100)
    clock.launch(0, 1.0)
    clock.launch(3, 1.0)
    assert clock.done(0) == pytest.approx(1.0, abs=1e-4)
    assert clock.done(3) == pytest.approx(2.0, abs=1e-4)


def test_copies_run_beside_kernels_and_both_ways_at_once():
    clock = Clock(A100)
    clock.launch(0, 1.0)
    half = A100.host_link * rates.PINNED / 2
    clock.copy(3, half, TO_GPU, pinned=True, blocking=False)
    clock.copy(35, half, TO_HOST, pinned=True, blocking=False)
    clock.copy(67, half, TO_HOST, pinned=True, blocking=False)
    assert [clock.done(stream) for stream in (0, 3, 35, 67)] == pytest.approx([1.0, 0.5, 0.5, 1.0], abs=1e-4)
    assert clock.host < 1e-4


@pytest.mark.parametrize(("pinned", "blocking"), [(False, False), (False, True), (True, True)])
def test_the_host_waits_for_a_copy_that_blocks(pinned, blocking):
    clock = Clock(A100)
    clock.copy(0, A100.host_link, TO_GPU, pinned=pinned, blocking=blocking)
    assert clock.host == pytest.approx(1 / (rates.PINNED if pinned else rates.PAGEABLE), abs=1e-4)


# Costs of operators


@pytest.mark.parametrize("name", SPECS)
def test_a_large_product_runs_at_the_rate_that_was_measured(name):
    for dtype, key in ((torch.float32, "float32"), (torch.float16, "float16")):
        left = torch.empty(8192, 8192, dtype=dtype, device="meta")
        _, seconds = costs.cost(spec(name), torch.ops.aten.mm.default, (left, left), {}, (left,))
        rate = 2 * 8192**3 / seconds / achieved_rates.rate(spec(name), key)
        assert 0.93 < rate <= 1  # the last wave is not full


def test_measured_rates_are_of_known_gpus_and_near_their_datasheets():
    """Of the datasheet's rate from a half (float32 from Ampere on, limited power) to a sixth more."""
    for name, measured in achieved_rates.MEASURED.items():
        peaks = spec(name).peak_flops
        assert spec(name).key == name
        for key, tera in measured.items():
            assert 0.5 < tera * 1e12 / peaks.get(key, tera * 1e12) < 1.17, (name, key)
            assert key in peaks or tera < measured["float32"]  # emulated


def test_where_nobody_measured_it_is_a_share_of_the_datasheets():
    for key in ("RTX 3060", "A10G"):
        assert key not in achieved_rates.MEASURED
        assert achieved_rates.rate(spec(key), "float16") == rates.COMPUTE * spec(key).peak_flops["float16"]


def test_bfloat16_without_units_for_it_is_slower_than_float32():
    """A T4 computes bfloat16 products at about half of float32's rate."""
    left = {dtype: torch.empty(8192, 8192, dtype=dtype, device="meta") for dtype in (torch.float32, torch.bfloat16)}
    seconds = {
        dtype: costs.cost(spec("T4"), torch.ops.aten.mm.default, (one, one), {}, (one,))[1]
        for dtype, one in left.items()
    }
    assert 1.8 < seconds[torch.bfloat16] / seconds[torch.float32] < 2


def test_products_grow_with_their_operations(gpu):
    times = []
    for depth in (2048, 4096, 8192):
        left, right = torch.empty(4096, depth, device="cuda"), torch.empty(depth, 4096, device="cuda")
        times.append(device_seconds(lambda left=left, right=right: left @ right))
    assert times[1:] == pytest.approx([2 * times[0], 4 * times[0]])


def test_elementwise_operators_grow_with_their_bytes(gpu):
    x, y = torch.empty(2, 64 * MiB, device="cuda")
    rate = A100.bandwidth * rates.BANDWIDTH
    assert device_seconds(lambda: x.relu()) == pytest.approx(2 * x.nbytes / rate)
    assert device_seconds(lambda: x + y) == pytest.approx(3 * x.nbytes / rate)
    assert device_seconds(lambda: x.add_(y)) == pytest.approx(3 * x.nbytes / rate)
    assert device_seconds(lambda: x.fill_(1)) == pytest.approx(x.nbytes / rate)
    assert device_seconds(lambda: x.copy_(y)) == pytest.approx(2 * x.nbytes / rate)
    assert device_seconds(lambda: x.half().relu()) == pytest.approx((1.5 + 1) * x.nbytes / rate)
    assert device_seconds(lambda: x.sum()) == pytest.approx((x.nbytes + 4) / rate)


def test_what_is_expanded_is_read_once(gpu):
    row, matrix = torch.empty(1, 4096, device="cuda"), torch.empty(4096, 4096, device="cuda")
    rate = A100.bandwidth * rates.BANDWIDTH
    seconds = device_seconds(lambda: matrix + row.expand(4096, 4096))
    assert seconds == pytest.approx((2 * matrix.nbytes + row.nbytes) / rate)


def test_views_and_empty_tensors_cost_the_device_nothing(gpu):
    x = torch.empty(1024, 1024, device="cuda")
    done = current().clock.done()
    x.t().view(-1) if x.t().is_contiguous() else x.t()[1:].unsqueeze(0)
    torch.empty_like(x)
    assert current().clock.done() == done
    assert current().clock.host > 0


def test_an_embedding_reads_the_rows_it_gives(gpu):
    table = torch.empty(50_000, 1024, device="cuda")
    indices = torch.zeros(128, dtype=torch.long, device="cuda")
    rows = 128 * 1024 * 4
    seconds = device_seconds(lambda: nn.functional.embedding(indices, table))
    assert seconds == pytest.approx((2 * rows + indices.nbytes) / (A100.bandwidth * rates.BANDWIDTH))


def test_small_operators_cost_their_launches(gpu):
    x = torch.ones(16, device="cuda")
    with labkit.stopwatch() as few:
        for _ in range(100):
            x.add_(1)
    with labkit.stopwatch() as many:
        for _ in range(200):
            x.add_(1)
    one = (many.seconds - few.seconds) / 100
    assert one == pytest.approx(rates.OPERATOR + rates.LAUNCH)


@pytest.mark.parametrize(
    "attention", ["_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"]
)
def test_the_causal_half_of_attention_is_half_the_work(gpu, attention):
    dtype = torch.bfloat16 if "flash" in attention else torch.float32
    query = torch.empty(4, 16, 2048, 64, dtype=dtype, device="cuda")
    extra = () if "flash" in attention else (None, False)
    operator = getattr(torch.ops.aten, attention)

    def run(causal):
        operator(query, query, query, *extra, 0.0, causal)

    whole, half = device_seconds(lambda: run(False)), device_seconds(lambda: run(True))
    assert whole == pytest.approx(2 * half)
    rate = A100.peak_flops["bfloat16"] if "flash" in attention else A100.peak_flops["tf32"] / 3
    assert whole == pytest.approx(4 * 4 * 16 * 2048**2 * 64 / rate / rates.ATTENTION)


@pytest.fixture
def precisions():
    """What float32 may be computed in, put back afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_tf32_only_where_it_is_allowed(gpu, precisions):
    ratio = achieved_rates.rate(A100, "tf32") / achieved_rates.rate(A100, "float32")
    x = torch.empty(4096, 4096, device="cuda")
    exact = device_seconds(lambda: x @ x)
    torch.backends.cuda.matmul.allow_tf32 = True
    assert exact / device_seconds(lambda: x @ x) == pytest.approx(ratio)
    image, weight = torch.empty(32, 256, 64, 64, device="cuda"), torch.empty(256, 256, 3, 3, device="cuda")
    image, weight = (one.to(memory_format=torch.channels_last) for one in (image, weight))
    fast = device_seconds(lambda: torch.conv2d(image, weight))
    torch.backends.cudnn.allow_tf32 = False
    assert device_seconds(lambda: torch.conv2d(image, weight)) / fast == pytest.approx(ratio)


def test_operations_are_flop_counter_s(gpu):
    layers = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(64 * 30 * 30, 128)).cuda()
    counted = []
    real = costs.operations

    def noted(*call):
        counted.append(real(*call))
        return counted[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "operations", noted)
        layers(torch.empty(8, 3, 32, 32, device="cuda")).sum().backward()
    with FlopCounterMode(display=False) as theirs:
        layers.to("meta")(torch.empty(8, 3, 32, 32, device="meta")).sum().backward()
    assert sum(counted) == theirs.get_total_flops() > 0


@pytest.mark.parametrize("groups", [1, 4, 256])
def test_each_gradient_of_a_convolution_counts_what_its_forward_counts(gpu, groups):
    torch.backends.cudnn.enabled = False  # its operators are the same on the clock
    try:
        image = torch.empty(32, 256, 32, 32, device="cuda", requires_grad=True)
        weight = torch.empty(256, 256 // groups, 3, 3, device="cuda", requires_grad=True)
        counted = []
        real = costs.operations
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(costs, "operations", lambda *call: counted.append(real(*call)) or counted[-1])
            torch.conv2d(image, weight, padding=1, groups=groups).sum().backward()
    finally:
        torch.backends.cudnn.enabled = True
    forward, backward = filter(None, counted)
    assert forward == 2 * 32 * 256 * 32 * 32 * (256 // groups) * 9
    assert backward == 2 * forward


def convolutions(gpu, dtype, channels, groups, size=3):
    """Seconds of a convolution and of its gradients, on images so few that computing is what takes long."""
    image = torch.empty(64, channels, 28, 28, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    image.requires_grad_()
    weight = torch.empty(channels, channels // groups, size, size, device="cuda", dtype=dtype)
    weight = weight.to(memory_format=torch.channels_last).requires_grad_()
    forward = device_seconds(lambda: torch.conv2d(image, weight, padding=size // 2, groups=groups))
    output = torch.conv2d(image, weight, padding=size // 2, groups=groups)
    gradient = torch.empty_like(output)
    both = device_seconds(lambda: output.backward(gradient))
    flops = 2 * 64 * 28 * 28 * channels * (channels // groups) * size**2
    return forward, both, flops


@pytest.mark.parametrize(("channels", "groups"), [(1024, 32), (1024, 8), (480, 4), (2048, 64)])
def test_a_group_fills_a_part_of_a_tile(gpu, channels, groups):
    """The rest of a tile of 64 columns is lost: twice the time for 32 channels a group, a quarter more for 120."""
    forward, both, flops = convolutions(gpu, torch.float16, channels, groups)
    each = channels // groups
    lost = -(-each // 64) * 64 / each
    peak = achieved_rates.rate(A100, "float16")
    assert forward == pytest.approx(max(flops * lost / peak, 4 * 64 * 28 * 28 * channels / 2039e9 / 0.9), rel=0.01)
    columns = each * 9
    weight = lost * -(-columns // 64) * 64 / columns
    assert both == pytest.approx(flops * (lost + weight) / peak, rel=0.01)


def test_depthwise_convolutions_use_no_tensor_cores(gpu):
    forward, both, flops = convolutions(gpu, torch.float16, 512, 512, size=31)
    assert forward == pytest.approx(flops / achieved_rates.rate(A100, "float32"))
    assert both == pytest.approx(2 * forward)


@pytest.mark.parametrize(("layout", "cudnn", "kernels"), [("cl", True, 0), ("nchw", True, 3), ("nchw", False, 0)])
def test_contiguous_images_are_transposed_around_a_convolution_on_tensor_cores(
    gpu, layout, cudnn, kernels, monkeypatch
):
    """Images, weight and result are read and written once more; with channels last or without cuDNN they are not."""
    monkeypatch.setattr(torch.backends.cudnn, "enabled", cudnn)
    layout = torch.channels_last if layout == "cl" else torch.contiguous_format
    images = torch.empty(32, 64, 56, 56, dtype=torch.float16, device="meta").to(memory_format=layout)
    weight = torch.empty(128, 64, 3, 3, dtype=torch.float16, device="meta").to(memory_format=layout)
    result = torch.empty(32, 128, 56, 56, dtype=torch.float16, device="meta").to(memory_format=layout)
    call = (images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    launched, seconds = costs.cost(A100, torch.ops.aten.convolution.default, call, {}, (result,))
    plain = costs.operations(torch.ops.aten.convolution.default, call, {}, (result,)) / achieved_rates.rate(
        A100, "float16"
    )
    moved = 2 * (images.nbytes + weight.nbytes + result.nbytes) if kernels else 0
    assert launched == 1 + kernels
    assert seconds == pytest.approx(plain + moved / (A100.bandwidth * rates.BANDWIDTH))


def test_layout_changes_backward_are_of_each_gradient_that_is_wanted(gpu):
    images = torch.empty(32, 64, 56, 56, dtype=torch.float16, device="meta")
    weight, result = torch.empty(128, 64, 3, 3, dtype=torch.float16, device="meta"), images.new_empty(32, 128, 56, 56)
    call = (result, images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    backward = torch.ops.aten.convolution_backward.default
    both, _ = costs.cost(A100, backward, (*call, [True, True, False]), {}, (images, weight, None))
    one, _ = costs.cost(A100, backward, (*call, [False, True, False]), {}, (None, weight, None))
    assert (both, one) == (2 + 6, 1 + 3)


def test_a_convolution_of_single_pixels_is_a_product_and_not_transposed(gpu):
    images = torch.empty(32, 64, 56, 56, dtype=torch.float16, device="meta")
    for stride, kernels in ((1, 1), (2, 4)):
        weight, size = images.new_empty(128, 64, 1, 1), 56 // stride
        call = (images, weight, None, [stride, stride], [0, 0], [1, 1], False, [0, 0], 1)
        result = images.new_empty(32, 128, size, size)
        assert costs.cost(A100, torch.ops.aten.convolution.default, call, {}, (result,))[0] == kernels


def test_a_compiled_models_convolutions_have_channels_last(gpu):
    images, weight = (torch.empty(64, 64, 3 + n, 3 + n, dtype=torch.float16, device="meta") for n in (50, 0))
    call = (images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    count = [costs.cost(A100, torch.ops.aten.convolution.default, call, {}, (images,), one)[0] for one in (False, True)]
    assert count == [4, 1]


def test_bfloat16_on_a_t4_uses_no_tensor_cores_and_is_not_transposed():
    call, counts = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1), []
    for dtype in (torch.float16, torch.bfloat16):
        images, weight = (torch.empty(64, 64, 3 + n, 3 + n, dtype=dtype, device="meta") for n in (50, 0))
        operator = torch.ops.aten.convolution.default
        counts.append(costs.cost(spec("T4"), operator, (images, weight, None, *call), {}, (images,))[0])
    assert counts == [4, 1]


def test_float32_without_tf32_is_not_transposed(gpu, precisions):
    torch.backends.cudnn.allow_tf32 = False
    images, weight = torch.empty(8, 64, 56, 56, device="meta"), torch.empty(64, 64, 3, 3, device="meta")
    call = (images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert costs.cost(A100, torch.ops.aten.convolution.default, call, {}, (images,))[0] == 1


def test_one_group_is_as_it_was(gpu):
    forward, both, flops = convolutions(gpu, torch.float16, 1024, 1)
    assert forward == pytest.approx(flops / achieved_rates.rate(A100, "float16"))
    assert both == pytest.approx(2 * forward)


@pytest.mark.parametrize(
    ("affine", "pixels", "mask", "launches"),
    [
        (True, 49, (True, True, True), 5),
        (False, 49, (True, False, False), 3),
        (True, 1, (True, True, True), 3),
        (True, 49, (False, True, True), 2),
    ],
)
def test_the_kernels_of_group_norm_s_gradients(affine, pixels, mask, launches):
    """group_norm_kernel.cu: two sums a channel, factors of channels and of groups, the gradients."""
    x = torch.empty(4, 64, pixels, device="meta")
    moments, weight = torch.empty(4, 8, device="meta"), torch.empty(64, device="meta") if affine else None
    arguments = (x, x, moments, moments, weight, 4, 64, pixels, 8, list(mask))
    outputs = tuple(x if wanted else None for wanted in mask)
    operator = torch.ops.aten.native_group_norm_backward.default
    assert costs.cost(A100, operator, arguments, {}, outputs)[0] == launches


@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_s_kernels(gpu, affine):
    """group_norm_kernel.cu: moments, then scale and shift of each channel if there are such, then the result."""
    norm, x = nn.GroupNorm(8, 64, affine=affine).cuda(), torch.empty(32, 64, 56, 56, device="cuda")
    kernels, seconds = costs.cost(
        A100, torch.ops.aten.native_group_norm.default, (x, norm.weight, norm.bias, 32, 64, 56 * 56, 8, 1e-5), {}, (x,)
    )
    assert kernels == (3 if affine else 2)
    assert seconds == pytest.approx(3 * x.nbytes / (A100.bandwidth * rates.BANDWIDTH), rel=1e-3)
    _, of_none = costs.cost(
        A100, torch.ops.aten.native_group_norm.default, (x[:, :, :1, :1], norm.weight, norm.bias, 32, 64, 1, 8, 1e-5),
        {}, (x[:, :, :1, :1],)
    )  # fmt: skip
    assert of_none < seconds / 1000


def test_group_norm_under_autocast_computes_in_float32(gpu):
    """autocast casts its input, so that six bytes of an element are moved before it, and twelve in it."""
    norm, x = nn.GroupNorm(8, 64).cuda(), torch.empty(32, 64, 56, 56, device="cuda", dtype=torch.float16)
    with torch.autocast("cuda", torch.float16):
        seconds = device_seconds(lambda: norm(x))
    assert seconds == pytest.approx((6 + 12) * x.numel() / (A100.bandwidth * rates.BANDWIDTH), rel=1e-3)


def test_batch_norm_reads_once_in_evaluation_and_twice_for_statistics(gpu):
    norm, x = nn.BatchNorm2d(64).cuda(), torch.empty(256, 64, 56, 56, device="cuda")
    one = x.nbytes / (A100.bandwidth * rates.BANDWIDTH)
    assert device_seconds(lambda: norm(x)) == pytest.approx(3 * one, rel=1e-4)
    norm.eval()
    assert device_seconds(lambda: norm(x)) == pytest.approx(2 * one, rel=1e-4)
    assert device_seconds(lambda: torch.nn.functional.batch_norm(x, norm.running_mean, norm.running_var)) == (
        pytest.approx(2 * one, rel=1e-4)
    )


def test_a_product_of_three_dims_is_one_kernel(gpu):
    x, weight = torch.empty(8, 128, 512, device="cuda"), torch.empty(512, 512, device="cuda")
    flat = x.view(-1, 512)
    assert device_seconds(lambda: x @ weight) == device_seconds(lambda: flat @ weight)


def test_backward_is_twice_forward_where_products_rule(gpu):
    layers = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8))).cuda()
    x = torch.empty(8192, 4096, device="cuda", requires_grad=True)
    forward = device_seconds(lambda: layers(x))
    y = layers(x)
    backward = device_seconds(lambda: y.backward(torch.empty_like(y)))
    assert backward / forward == pytest.approx(2, rel=0.05)


def test_lists_of_tensors_are_few_launches():
    tensors = [torch.empty(1000, device="meta") for _ in range(200)]
    assert costs.launches((tensors,), ()) == 2  # at most 110 tensors a launch
    assert costs.launches((tensors, tensors), tensors) == 5  # 48 of three lists
    assert costs.launches(([torch.empty(65536 * 960, device="meta")],), ()) == 3  # 320 chunks a launch


def test_a_fused_optimizer_is_faster_than_a_loop(gpu):
    times = {}
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        parameters = [nn.Parameter(torch.empty(64, 64, device="cuda")) for _ in range(100)]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer = torch.optim.AdamW(parameters, **options)
        optimizer.step()
        with labkit.stopwatch() as timing:
            optimizer.step()
        times[next(iter(options))] = timing.ms
        assert options != {"foreach": False} or timing.ms > 100 * 10 * 1e3 * rates.LAUNCH
    assert times["fused"] < times["foreach"] * 1.01
    assert len(times) == 2


def test_the_step_of_a_product_at_whole_tiles():
    """One row more than whole waves of tiles takes a wave more."""
    assert costs.filled(1, 108 * 128, 128, 256, 108) == 1
    assert costs.filled(1, 108 * 128 + 1, 128, 256, 108) == pytest.approx(0.5, rel=0.01)
    assert costs.filled(1, 128, 128, 108 * rates.SPLIT, 108) == 1  # the sum is split among the multiprocessors
    assert costs.filled(1, 128, 128, rates.SPLIT, 108) == pytest.approx(1 / 108)
    assert costs.filled(1, 256, 4096, 4096, 108) == pytest.approx(320 / 324)  # 64 tiles, in five parts


@given(
    rows=st.integers(1, 4096),
    columns=st.integers(1, 8192),
    depth=st.integers(1, 16_384),
    multiprocessors=st.sampled_from([28, 40, 108, 132]),
)
def test_twice_the_rows_take_at_most_twice_the_time(rows, columns, depth, multiprocessors):
    """Two products one after another would do it, too. It holds below a wave of tiles, where sums are split."""

    def time(rows):
        return rows * columns / costs.filled(1, rows, columns, depth, multiprocessors)

    assert time(rows) <= time(2 * rows) * (1 + 1e-9)
    if ceil(2 * rows / rates.TILE) * ceil(columns / rates.TILE) < multiprocessors:
        assert time(2 * rows) <= 2 * time(rows) * (1 + 1e-9)


# The host


def test_a_value_is_waited_for(gpu):
    x = torch.empty(8192, 8192, device="cuda")
    loss = (x @ x).sum()
    before = current().clock.host
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss.item()
    assert current().clock.host > before + 2 * 8192**3 / A100.peak_flops["float32"]
    assert current().clock.host > current().clock.done()


@pytest.mark.parametrize("pinned", [False, True])
def test_copies_over_the_link(gpu, pinned):
    x = torch.ones(64 * MiB)
    x = x.pin_memory() if pinned else x
    assert x.is_pinned() == pinned
    with labkit.stopwatch() as timing:
        x.to("cuda", non_blocking=True)
    expected = x.nbytes / A100.host_link / (rates.PINNED if pinned else rates.PAGEABLE)
    assert timing.seconds == pytest.approx(expected, rel=0.01)
    assert (timing.host_ms < 0.1) == pinned


def test_fewer_bytes_cross_in_half_precision(gpu):
    x = torch.ones(64 * MiB).pin_memory()
    half = x.half().pin_memory()
    times = []
    for tensor in (x, half):
        with labkit.stopwatch() as timing:
            tensor.to("cuda", non_blocking=True).float()
        times.append(timing.seconds)
    assert 1.9 < times[0] / times[1] < 2.1


def test_a_copy_to_the_host_blocks_unless_it_is_asked_not_to(gpu):
    x = torch.empty(64 * MiB, device="cuda")
    with labkit.stopwatch() as blocking:
        assert not x.cpu().is_pinned()
    with labkit.stopwatch() as free:
        assert x.to("cpu", non_blocking=True).is_pinned()
    assert blocking.host_ms > blocking.ms * 0.9
    assert free.host_ms < 0.1 < free.ms
    there = torch.empty(64 * MiB, pin_memory=True)
    with labkit.stopwatch() as into:
        there.copy_(x, non_blocking=True)
    assert into.ms == pytest.approx(free.ms, rel=0.01)


# Streams and events


def test_a_copy_stream_hides_copies_behind_kernels(gpu):
    batches = [torch.ones(16 * MiB).pin_memory() for _ in range(8)]
    weight = torch.empty(4096, 4096, device="cuda")

    def compute(x):
        for _ in range(4):
            weight @ weight
        return x.sum()

    with labkit.stopwatch() as one_stream:
        for batch in batches:
            compute(batch.to("cuda", non_blocking=True))
    copies = torch.cuda.Stream()
    with labkit.stopwatch() as two_streams:
        for batch in batches:
            with torch.cuda.stream(copies):
                x = batch.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(copies)
            compute(x)
    copying = sum(batch.nbytes for batch in batches) / A100.host_link / rates.PINNED
    hidden = one_stream.seconds - two_streams.seconds
    assert hidden == pytest.approx(copying * 7 / 8, rel=0.02)  # all but the first


def test_events_are_points_of_their_stream(gpu):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.empty(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    start.record()
    x @ x
    end.record()
    assert not end.query()
    with pytest.raises(RuntimeError, match="Both events must be completed before calculating"):
        start.elapsed_time(end)
    end.synchronize()
    assert end.query() and torch.cuda.current_stream().query()
    assert start.elapsed_time(end) > 1e3 * 2 * 8192**3 / A100.peak_flops["float32"]
    while not end.query():
        pytest.fail("it is over")


def test_a_loop_that_asks_an_event_ends(gpu):
    x = torch.empty(512, 512, device="cuda")
    x @ x
    event = torch.cuda.current_stream().record_event()
    asked = 0
    while not event.query():
        asked += 1
    assert asked > 0


def test_events_without_a_time_are_refused_in_cuda_s_words(gpu):
    plain, timed = torch.cuda.Event(), torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="created with argument 'enable_timing=True'"):
        plain.elapsed_time(timed)
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(timed)
    assert timed.query() and plain.query()  # nothing recorded: nothing to wait for
    timed.wait()
    timed.synchronize()


def test_a_stream_waits_for_an_event(gpu):
    side = torch.cuda.Stream()
    x = torch.empty(8192, 8192, device="cuda")
    x @ x
    done = torch.cuda.current_stream().record_event()
    side.wait_event(done)
    with torch.cuda.stream(side):
        x.add_(1)
    assert current().clock.done(side.stream_id) > current().clock.done(0)
    before = current().clock.host
    side.synchronize()
    assert current().clock.host > before + 0.01 and side.query()


# Whole steps


def step_times():
    with labkit.simulated_gpu("A100-80GB"), torch.device("cuda"):
        model = nn.TransformerEncoderLayer(256, 4, batch_first=True)
        optimizer = torch.optim.AdamW(model.parameters())
        times = []
        for _ in range(3):
            with labkit.stopwatch("step") as timing:
                model(torch.zeros(8, 128, 256)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            times.append(timing.ms)
    return times


def test_two_runs_take_the_same_time():
    first, second = step_times(), step_times()
    assert first == second
    assert first[1] == pytest.approx(first[2], rel=1e-9)


def test_a_faster_gpu_is_faster_where_the_gpu_is_what_is_waited_for():
    times = {}
    for name in ("V100-16GB", "A100-80GB", "H100"):
        with labkit.simulated_gpu(name):
            x = torch.empty(4096, 4096, device="cuda", dtype=torch.float16)
            with labkit.stopwatch() as large:
                for _ in range(20):
                    x @ x
            small = torch.ones(16, device="cuda")
            with labkit.stopwatch() as tiny:
                for _ in range(100):
                    small.add_(1)
            times[name] = large.ms, tiny.ms
    larges, tinies = zip(*times.values(), strict=True)
    assert larges[0] > 2 * larges[1] > 4 * larges[2]
    assert max(tinies) == pytest.approx(min(tinies))


def test_memory_is_as_it_is_without_asking_for_times(gpu):
    x = torch.ones(1024, 1024, device="cuda")
    before = torch.cuda.memory_stats()
    with labkit.stopwatch():
        pass
    assert torch.cuda.memory_stats() == before
    assert x.is_cuda


def moved(operator, *args, outputs=()):
    return costs.traffic(costs.plan_of(operator), args, {}, outputs)


def test_the_bytes_that_operators_move():
    """Each is read or written once, by what CUDA's kernels do, written in place both; of tables only some rows."""
    aten = torch.ops.aten
    x, y = torch.empty(2, 1000, device="meta")
    rows, indices = torch.empty(50, 10, device="meta"), torch.zeros(20, dtype=torch.long, device="meta")
    assert moved(aten.add.Tensor, x, y, outputs=(x,)) == 12_000
    assert moved(aten.add_.Tensor, x, y) == 12_000
    assert moved(aten._foreach_add_.List, [x, x], [y, y]) == 24_000
    assert moved(aten._foreach_mul.Scalar, [x, x], 2, outputs=([x, x],)) == 16_000
    assert moved(aten.cat.default, [x, y, y], outputs=(torch.empty(3000, device="meta"),)) == 24_000
    assert moved(aten.index_select.default, rows, 0, indices, outputs=(rows[:20],)) == 2 * 800 + 160
    assert moved(aten.index_add_.default, rows, 0, indices, rows[:20]) == 2 * (800 + 160)
    assert moved(aten.zero_.default, x) == 4000


@pytest.mark.parametrize(
    ("name", "launches"),
    [
        *[("mm", 1), ("native_layer_norm_backward", 2), ("_fused_rms_norm_backward", 2), ("native_batch_norm", 2)],
        *[("cudnn_batch_norm", 2), ("native_batch_norm_backward", 2), ("cudnn_batch_norm_backward", 2)],
        *[("slice_backward", 2), ("select_backward", 2)],
        *[("mse_loss", 2), ("nll_loss_backward", 2), ("embedding_dense_backward", 2), ("index_put", 2)],
        *[("index_add", 2), ("scatter.src", 2), ("scatter_add", 2), ("sort", 8)],
        *[("_scaled_dot_product_flash_attention_backward", 3), ("_scaled_dot_product_cudnn_attention_backward", 3)],
        ("_scaled_dot_product_efficient_attention_backward", 2),
    ],
)
def test_kernels_of_one_call(name, launches):
    """As PyTorch's CUDA code launches them."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    assert costs.plan_of(operator).launches == launches


def test_a_copy_into_a_tensor_of_the_host_takes_the_link_s_time(gpu):
    nbytes = 256 * MiB
    x = torch.ones(nbytes // 4, device="cuda")
    host = torch.empty(nbytes // 4)
    torch.cuda.synchronize()
    begun = current().clock.host
    host.copy_(x)
    assert current().clock.host - begun >= nbytes / A100.host_link


@pytest.mark.parametrize("many", [1, 3, 50])
def test_the_host_takes_its_time_for_each_tensor_of_a_list(gpu, monkeypatch, many):
    tensors = [torch.ones(4, device="cuda") for _ in range(many)]
    told = []
    monkeypatch.setattr(Clock, "launch", lambda clock, stream, work, kernels, overhead, name: told.append(overhead))
    torch._foreach_add_(tensors, 1)
    assert told == [pytest.approx(rates.OPERATOR + many * rates.TENSOR)]
