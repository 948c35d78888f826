"""What was launched on the stub engine, on a clock: operators, kernels that Inductor generated, and CUDA graphs."""

import sys
from types import SimpleNamespace

import pytest
import torch

from simgpu.clock import achieved_rates, rates
from simgpu.clock.clock import Reading
from simgpu.dispatch import costs
from simgpu.gpus.specs import spec
from simgpu.running.stub import launches, times, timing
from simgpu.running.stub.timing import Timing

H100 = spec("H100")
NAMES = {torch.float32: "float", torch.bfloat16: "c10::BFloat16", torch.int64: "long int"}


def tensor(*shape, dtype=torch.bfloat16, device="cuda:0"):
    """Returns value, shape, type and strides of a tensor, as a trace has them."""
    made = torch.empty(shape, dtype=dtype, device="meta")
    value = [1, 2, 0, made.numel(), made.element_size(), device]
    return value, list(shape), f"Tensor({NAMES[dtype]})", list(made.stride())


def number(value):
    return value, [], type(value).__name__.title(), []


NONE = ("<None>", [], "None", [])


def columns(values):
    return {name: [one[place] for one in values] for place, name in enumerate(("values", "shapes", "types", "strides"))}


class Trace:
    """Writes nodes as PyTorch's execution trace has them."""

    def __init__(self):
        self.nodes = []

    def node(self, name, parent=0, schema="", given=(), made=()):
        number = len(self.nodes) + 1
        attrs = [{"name": "op_schema", "type": "string", "value": schema}]
        self.nodes.append(
            {"id": number, "name": name, "ctrl_deps": parent, "inputs": columns(given), "outputs": columns(made)}
            | {"attrs": attrs}
        )
        return number

    def call(self, operator, given, made, parent=0):
        return self.node(operator.name().split(".")[0], parent, str(operator._schema), given, made)

    def mark(self, *words):
        return self.node(launches.MARK + launches.SEPARATOR.join(map(str, words)))

    def mm(self, parent=0, **how):
        given = tensor(4096, 4096, **how), tensor(4096, 4096, **how)
        return self.call(torch.ops.aten.mm.default, given, [tensor(4096, 4096, **how)], parent)

    def played(self):
        found = Timing(H100)
        found.play(self.nodes)
        return found


def seconds_of_mm(dtype=torch.bfloat16):
    one = torch.empty(4096, 4096, dtype=dtype, device="meta")
    return costs.cost(H100, torch.ops.aten.mm.default, (one, one), {}, (one,))[1]


# Kernels that Inductor generates


class Kernel:
    """Stands in for a kernel of Inductor that writes its source."""

    @classmethod
    def inductor_meta_common(cls):
        return {"backend_hash": "a"}

    def estimate_kernel_num_bytes(self):
        return 3_000_000

    def estimate_flops(self):
        return 7

    def write(self):
        return {"no_x_dim": False, **self.inductor_meta_common()}


def test_the_source_of_a_kernel_notes_its_bytes(monkeypatch):
    monkeypatch.setattr(Kernel, "write", launches.with_bytes(Kernel.write))
    kernel = Kernel()
    assert kernel.write() == {"no_x_dim": False, "backend_hash": "a", "kernel_num_gb": 0.003, "kernel_flop": 7}
    assert kernel.inductor_meta_common() == {"backend_hash": "a"}


def kernel(name="triton_poi_fused_add_0", kind="POINTWISE", **about):
    signature = {"in_ptr0": "*i64", "in_ptr1": "*bf16", "xnumel": "i32"}
    fn, heuristic = SimpleNamespace(__name__=name), SimpleNamespace(name=kind)
    return SimpleNamespace(inductor_meta=about, fn=fn, heuristic_type=heuristic, triton_meta={"signature": signature})


def test_a_launch_is_marked_with_inductors_own_counts():
    words = launches.words_of(kernel(kernel_num_gb=0.5, kernel_flop=3), ())
    assert words == (launches.KERNEL, "triton_poi_fused_add_0", 500_000_000, 3, "bf16")


def test_without_a_count_each_argument_is_moved_once():
    args = torch.empty(10, dtype=torch.int64), torch.empty(4, dtype=torch.bfloat16), 4
    assert launches.words_of(kernel(), args)[2] == 88
    assert launches.bytes_of_arguments(args, ("in_out_ptr0", "in_ptr1", "xnumel")) == 168


@pytest.mark.parametrize(
    "opaque", [kernel("mine", "USER_AUTOTUNE", kernel_num_gb=1.0), kernel("triton_tem_fused_0", kernel_num_gb=1.0)]
)
def test_kernels_whose_work_is_not_known_have_no_time(opaque):
    assert launches.words_of(opaque, ())[0] == launches.OPAQUE


def test_a_generated_kernel_takes_its_bytes_over_the_bandwidth():
    trace = Trace()
    trace.mark(launches.KERNEL, "k", 2_000_000_000, 0, "bf16")
    found = trace.played()
    assert found.clock.busy == pytest.approx(2e9 / achieved_rates.bandwidth(H100) + rates.KERNEL)
    assert found.clock.host == pytest.approx(rates.OPERATOR + rates.LAUNCH)
    assert (found.kernels, found.nbytes) == (1, 2_000_000_000)


def test_a_generated_matmul_takes_its_operations_over_the_rate():
    trace = Trace()
    trace.mark(launches.KERNEL, "k", 1000, 10**15, "bf16")
    assert trace.played().clock.busy == pytest.approx(1e15 / achieved_rates.rate(H100, "bfloat16") + rates.KERNEL)


# Operators


def test_an_operator_costs_what_it_costs_on_the_meta_engine():
    trace = Trace()
    outer = trace.node("aten::matmul", 0, str(torch.ops.aten.matmul.default._schema), [tensor(2, 2)], [tensor(2, 2)])
    trace.mm(outer)
    found = trace.played()
    assert found.clock.busy == pytest.approx(seconds_of_mm() + rates.KERNEL)
    assert found.operators == 1 and not found.untimed


def test_autocast_calls_an_operator_again_and_it_counts_once():
    trace = Trace()
    trace.mm(trace.mm(dtype=torch.float32))
    assert trace.played().clock.busy == pytest.approx(seconds_of_mm() + rates.KERNEL)


def test_calls_inside_of_an_operator_with_a_kernel_are_part_of_it():
    trace = Trace()
    call = trace.mm()
    trace.call(torch.ops.aten.fill_.Scalar, [tensor(2**28), number(1)], [tensor(2**28)], call)
    assert trace.played().clock.busy == pytest.approx(seconds_of_mm() + rates.KERNEL)


def test_the_host_and_views_take_no_time_of_the_gpu():
    trace = Trace()
    trace.mm(device="cpu")
    trace.call(torch.ops.aten.t.default, [tensor(8, 8)], [tensor(8, 8)])
    found = trace.played()
    assert found.clock.busy == 0 and found.clock.host == pytest.approx(rates.VIEW)


def test_backward_is_known_by_its_node_in_the_trace():
    trace = Trace()
    trace.mm()
    trace.mm(trace.node("MmBackward0", trace.node("autograd::engine::evaluate_function: MmBackward0")))
    found = trace.played()
    assert found.clock.backward == pytest.approx(found.clock.busy / 2)


def attention(masked):
    """Returns the seconds of one causal call of attention, or of one with a mask that hides the same half."""
    q, statistics = tensor(1, 32, 4096, 128), tensor(1, 32, 4096, dtype=torch.float32)
    seed = tensor(dtype=torch.int64)
    operator = torch.ops.aten._scaled_dot_product_efficient_attention.default
    mask = tensor(1, 1, 4096, 4096) if masked else NONE
    trace = Trace()
    given = [q, q, q, mask, number(True), number(0.0), number(not masked), NONE]
    trace.call(operator, given, [q, statistics, seed, seed])
    found = trace.played()
    assert (found.attentions, found.masked) == (1, masked)
    return found.clock.busy - rates.KERNEL


def test_attention_with_a_mask_computes_the_whole_square_and_causal_attention_half():
    assert attention(masked=True) == pytest.approx(2 * attention(masked=False), rel=1e-3)


def test_the_host_waits_for_a_value_and_for_the_gpu():
    trace = Trace()
    trace.mm()
    trace.call(torch.ops.aten._local_scalar_dense.default, [tensor()], [])
    found = trace.played()
    assert found.clock.host > seconds_of_mm()


def test_a_copy_from_the_host_takes_its_bytes_over_the_link():
    trace = Trace()
    given = [tensor(2**28), tensor(2**28, device="cpu"), number(False)]
    trace.call(torch.ops.aten.copy_.default, given, [tensor(2**28)])
    assert trace.played().clock.busy == pytest.approx(2**29 / (H100.host_link * rates.PAGEABLE))


# CUDA graphs, steps, and what has no time


def test_a_replay_is_one_launch_with_the_time_of_all_kernels():
    trace = Trace()
    trace.mark(launches.CAPTURE, 5)
    for _ in range(10):
        trace.mm()
    trace.mark(launches.CAPTURED, 5)
    captured = trace.played().clock.host
    trace.mark(launches.REPLAY, 5)
    found = trace.played()
    assert found.clock.busy == pytest.approx(10 * (seconds_of_mm() + rates.KERNEL))
    assert found.clock.host - captured == pytest.approx(rates.CALL + rates.LAUNCH)
    assert found.replays == 1 and not found.untimed


def test_a_graph_that_was_captured_before_has_no_time():
    trace = Trace()
    trace.mark(launches.REPLAY, 5)
    assert sum(trace.played().untimed.values()) == 1


def test_a_step_is_the_median_of_the_later_half():
    ends = [Reading(float(end)) for end in (0, 100, 150, 160, 180, 191)]
    step = timing.step_of(ends)
    assert step is not None and step.seconds == 11.0
    assert timing.step_of(ends[:1]) is None


def test_steps_are_read_where_they_end():
    trace = Trace()
    for _ in range(3):
        trace.mm()
        trace.mark(launches.STEP)
    first, second, third = (one.busy for one in trace.played().steps)
    assert second - first == pytest.approx(third - second) == pytest.approx(first)


@pytest.mark.parametrize(
    ("name", "schema", "what"),
    [
        ("flash::forward", "flash::forward(Tensor q) -> Tensor", "the operator flash::forward"),
        ("c10d::allreduce_", "", "the collective c10d::allreduce_"),
    ],
)
def test_what_has_no_time_is_named_and_there_is_no_total(name, schema, what):
    trace = Trace()
    trace.node(name, 0, schema, [tensor(4)], [tensor(4)])
    observed = launches.Launches("folder that is not there")
    observed.timing = trace.played()
    found = times.fields(timing.document(observed, H100, 0), "H100")
    assert found == {
        "seconds": 0.0,
        "timed": f"No time is estimated because it is not known of {what} (launched once).",
    }


def test_a_kernel_without_a_mark_is_of_an_extension():
    observed = launches.Launches("folder that is not there")
    observed.marked = 2
    assert "extension" in times.fields(timing.document(observed, H100, 3), "H100")["timed"]
    assert not timing.document(launches.Launches("folder that is not there"), H100, 0)["untimed"]


def test_the_page_has_a_step_where_the_run_was_too_long():
    trace = Trace()
    for _ in range(3):
        trace.mm()
        trace.mark(launches.STEP)
    observed = launches.Launches("folder that is not there")
    observed.timing, observed.cut = trace.played(), launches.LONG
    found = times.fields(timing.document(observed, H100, 0), "H100")
    assert found["time"] is None and found["step_time"].clock > 0 and "too long" in found["timed"]


READABLE = '"id": 1, "name": "aten::mm", "ctrl_deps": 0\n      }'
NAMED = '"id": 2, "name": "a "quoted" name", "attrs": [{"name": "op_schema", "type": "string", "value": ""}]\n      }'
CALL = '"id": 3, "inputs": {"values": [""]"]}, "attrs": [{"name": "op_schema", "type": "string", "value": "a::x"}]\n }'


def test_a_name_with_quotes_is_skipped_and_a_call_with_quotes_has_no_time():
    text = '{\n  "nodes": [\n      {\n        ' + ",\n      {\n        ".join([READABLE, NAMED, CALL]) + "\n  ]\n}"
    first, last = launches.nodes_of(text)
    assert first == {"id": 1, "name": "aten::mm", "ctrl_deps": 0}
    assert last["id"] == 3 and timing.mark_of(last) == [launches.OPAQUE, "a call whose arguments cannot be read"]


def test_a_trace_that_is_too_long_is_removed_and_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(launches, "MOST", 10)
    (tmp_path / "trace.json").write_text("x" * 11)
    observed = launches.Launches(str(tmp_path))
    assert observed.taken() == [] and observed.cut == launches.LONG
    assert list(tmp_path.iterdir()) == []
    said = times.fields(timing.document(observed, H100, 0), "H100")["timed"]
    assert said == "No time is estimated because the run was too long."


def test_a_trace_without_its_end_is_not_read(tmp_path):
    (tmp_path / "trace.json").write_text('{"nodes": [{"id": 1')
    observed = launches.Launches(str(tmp_path))
    assert observed.taken() == [] and observed.cut == launches.UNWRITTEN


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stub engine runs on Linux")
def test_a_trace_that_grows_without_end_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(launches, "MOST", 1 << 20)
    path = tmp_path / "trace.json"
    with open(path, "w") as file:  # as the process writes it, which knows nothing of the other one
        for _ in range(8):
            file.write("x" * (1 << 20))
            file.flush()
            launches.shorten(path)
        file.write("}")
    assert path.stat().st_size > 8 << 20 and path.stat().st_blocks * 512 < 4 << 20
    observed = launches.Launches(str(tmp_path))
    assert observed.taken() == [] and observed.cut == launches.LONG
    launches.shorten(path)  # which is gone
    path.touch()  # as after the last `shorten` of a process that has ended
    assert observed.taken() == [] and observed.cut == launches.LONG
