"""torch.compile on the simulated GPU: eager memory, and the time of the kernels that inductor would fuse."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import labkit
import simgpu
from simgpu.clock import rates
from simgpu.gpus.specs import spec

A100 = spec("A100-80GB")
RATE = A100.bandwidth * rates.BANDWIDTH
MiB = 2**20
pytestmark = pytest.mark.filterwarnings("ignore::simgpu.IncompleteEstimateWarning")


@pytest.fixture(autouse=True)
def gpu():
    with simgpu.simulated_gpu("A100-80GB"):
        yield


def kernels(work):
    """Name and seconds of each kernel, fixed cost left out."""
    with labkit.stopwatch(lanes=True) as timing:
        work()
    computed = [one for one in timing.lanes if one.lane == "compute"]
    return [(one.name, (one.end - one.start) / 1e3 - rates.KERNEL) for one in computed]


def names(work):
    return [name for name, _ in kernels(work)]


def test_a_chain_is_one_kernel_that_reads_and_writes_once():
    x = torch.empty(16 * MiB, device="cuda")
    chain = torch.compile(lambda x: ((x.sin() + 1) * x).exp())
    ((name, seconds),) = kernels(lambda: chain(x))
    assert name == "sin+add+mul+exp"
    assert seconds == pytest.approx(2 * x.nbytes / RATE, rel=1e-6)


def test_products_stay_and_part_the_groups():
    x, w = torch.empty(2, 1024, 1024, device="cuda")
    function = torch.compile(lambda x: torch.relu((x.sin().cos() @ w) + 1).exp())
    assert names(lambda: function(x)) == ["sin+cos", "mm", "add+relu+exp"]


def test_softmax_and_what_follows_it_is_one_kernel():
    x = torch.empty(4096, 4096, device="cuda")
    function = torch.compile(lambda x: (torch.softmax(x * 2, -1) + 1).half())
    ((name, seconds),) = kernels(lambda: function(x))
    assert name == "mul+_softmax+add+_to_copy"
    assert seconds == pytest.approx(1.5 * x.nbytes / RATE, rel=1e-6)


def test_a_sum_across_rows_is_a_kernel_of_its_own():
    x = torch.empty(4096, 4096, device="cuda")
    assert names(lambda: torch.compile(lambda x: x.sin().sum(0))(x)) == ["sin", "sum"]
    assert names(lambda: torch.compile(lambda x: x.sin().sum(1))(x)) == ["sin+sum"]


def test_what_is_given_out_and_what_is_written_in_place_is_written():
    x, y = torch.empty(2, 16 * MiB, device="cuda")

    @torch.compile
    def function(x, y):
        a = x.sin()
        y.add_(a)
        return a, a.cos()

    ((_, seconds),) = kernels(lambda: function(x, y))
    assert seconds == pytest.approx((2 + 3) * x.nbytes / RATE, rel=1e-6)  # x and y are read; y and two more are written


def test_backward_computes_again_what_is_cheaper_than_saved():
    x = torch.empty(16 * MiB, device="cuda", requires_grad=True)
    gradient = torch.empty(16 * MiB, device="cuda")
    chain = torch.compile(lambda x: x.sin().exp().tanh())
    given_out = []
    forward = kernels(lambda: given_out.append(chain(x)))
    backward = kernels(lambda: given_out.pop().backward(gradient))
    assert [len(forward), len(backward)] == [1, 1]
    assert forward[0][1] == pytest.approx(2 * x.nbytes / RATE, rel=1e-6)
    # x and the gradient are read and, of what forward has given out, tanh's result; x's gradient is written
    assert 3 * x.nbytes / RATE <= backward[0][1] + 1e-12 <= 4.001 * x.nbytes / RATE


class Block(nn.Module):
    """A transformer's block with its GELU spelled out."""

    def __init__(self, width=128, heads=4):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.dropout = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x):
        shape = (*x.shape[:2], self.heads, -1)
        parts = (one.view(shape).transpose(1, 2) for one in self.inputs(self.norms[0](x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.dropout(self.outputs(mixed.transpose(1, 2).reshape(x.shape)))
        y = self.up(self.norms[1](x))
        y = 0.5 * y * (1.0 + torch.tanh(0.8 * (y + 0.044715 * torch.pow(y, 3.0))))
        return x + self.dropout(self.down(y))


def trained(prepare, steps=2, autocast=False):
    """Milliseconds and launches of a step, and every event of the allocator."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = nn.Sequential(*(Block() for _ in range(3)))
        x = torch.empty(8, 256, 128)
    model = prepare(model) or model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.cuda.memory._record_memory_history()
    for _ in range(steps):
        with labkit.stopwatch(lanes=True) as timing:
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    events = [(event["action"], event["size"]) for event in trace]
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.memory._record_memory_history(None)
    return timing.ms, sum(one.lane == "compute" for one in timing.lanes), events, peak


def by_layer(model):
    for block in model:
        block.compile()


@pytest.mark.parametrize("autocast", [False, True])
def test_a_model_takes_the_eager_memory_and_less_time(autocast):
    found = {}
    for name, prepare in (
        ("eager", lambda model: None),
        ("whole", lambda model: torch.compile(model)),
        ("layers", by_layer),
    ):
        with simgpu.simulated_gpu("A100-80GB"):
            found[name] = trained(prepare, autocast=autocast)
    eager, whole, layers = found.values()
    assert whole[2] == eager[2] == layers[2] and whole[3] == eager[3] == layers[3]
    assert whole[0] < 0.95 * eager[0] and whole[1] < 0.7 * eager[1]
    assert whole[0] <= layers[0] < 1.15 * whole[0]


def test_cuda_graphs_are_one_launch_each_way():
    eager = trained(lambda model: None)
    with simgpu.simulated_gpu("A100-80GB"):
        plain = trained(lambda model: torch.compile(model))
    with simgpu.simulated_gpu("A100-80GB"):
        graphed = trained(lambda model: torch.compile(model, mode="reduce-overhead"))
    assert graphed[1] < 15 < plain[1] < eager[1]
    assert graphed[0] < plain[0]
    assert graphed[2] == eager[2]
    x = torch.empty(1000, device="cuda")
    options = torch.compile(lambda x: x.sin().sum(0) + 1, options={"triton.cudagraphs": True})
    assert names(lambda: options(x)) == ["CUDA graph"]


def test_another_backend_is_as_fast_as_eager():
    x = torch.empty(1000, device="cuda")
    assert names(lambda: torch.compile(lambda x: x.sin().cos(), backend="eager")(x)) == ["sin", "cos"]
    assert names(lambda: torch.compile(lambda x: x.sin().cos(), disable=True)(x)) == ["sin", "cos"]


def test_a_value_that_is_asked_for_parts_the_groups():
    x = torch.ones(1000, device="cuda")

    @torch.compile
    def function(x):
        y = x.sin().cos()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y.sum().item()
        return y.exp().tan()

    assert names(lambda: function(x)) == ["sin+cos+sum", "exp+tan"]


def test_a_backward_that_fails_ends_there():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("on purpose")

    x = torch.ones(1000, device="cuda", requires_grad=True)
    function = torch.compile(lambda x: Fails.apply(x.sin()).cos())
    with pytest.raises(KeyError):
        function(x).sum().backward()
    y = torch.ones(1000, device="cuda")
    assert names(lambda: y.sin().cos()) == ["sin", "cos"]
    assert simgpu.device.machine.current().clock.region is None


def test_decorators_methods_and_what_stays_after_the_gpu():
    @torch.compile(mode="default")
    def function(x):
        return x.sin().cos()

    layer = nn.Linear(8, 8).cuda()
    layer.compile()
    x = torch.ones(4, 8, device="cuda")
    assert names(lambda: function(x)) == ["sin+cos"]
    assert names(lambda: layer(x)) == ["addmm"]
    assert isinstance(torch.compile(layer), nn.Module)


def test_it_says_what_it_does():
    with (
        simgpu.simulated_gpu("H100") as gpu,
        pytest.warns(simgpu.IncompleteEstimateWarning, match="time is an estimate"),
    ):
        torch.compile(nn.Linear(2, 2).cuda())(torch.ones(2, 2, device="cuda"))
    assert [name for name, _ in gpu.unmodeled] == ["torch.compile"]


OPERATORS = {
    "sin": lambda x, w: x.sin(),
    "add": lambda x, w: x + 1,
    "twice": lambda x, w: x * x,
    "softmax": lambda x, w: torch.softmax(x, -1),
    "sum": lambda x, w: x + x.sum(0),
    "mm": lambda x, w: x @ w,
    "t": lambda x, w: x.t(),
    "relu_": lambda x, w: (x + 0).relu_(),
    "mean": lambda x, w: x - x.mean(-1, keepdim=True),
}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(list(OPERATORS)), min_size=1, max_size=12), st.booleans())
def test_any_program_is_no_slower(chosen, training):
    def program(x, w):
        for name in chosen:
            x = OPERATORS[name](x, w)
        return x

    found = []
    for function in (program, torch.compile(program)):
        x, w = (torch.empty(512, 512, device="cuda", requires_grad=training) for _ in range(2))
        with labkit.stopwatch() as timing:
            result = function(x, w)
            if training:
                result.sum().backward()
        found.append(timing.ms)
        del x, w, result
    assert found[1] <= found[0] * 1.0001
