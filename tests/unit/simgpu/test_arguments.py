"""An operator takes the same memory however its arguments are given."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import simgpu
from simgpu.op_info import arguments, op_spec
from simgpu.ops.op_call import OpCall

aten = torch.ops.aten
HALF, LONG = torch.float16, torch.int64


def gpu(*shape, dtype=torch.float32):
    return lambda: torch.empty(shape, dtype=dtype, device="cuda")


def lists(*makers):
    return lambda: [make() for make in makers]


# One call of each operator, all its arguments in the order of the schema; a function makes a tensor.
CALLS = {
    aten.mm.default: [gpu(64, 32), gpu(32, 16)],
    aten.addmm.default: [gpu(16), gpu(64, 32), gpu(32, 16)],
    aten.baddbmm.default: [gpu(4, 8, 8), gpu(4, 8, 8), gpu(4, 8, 8)],
    aten.addmv.default: [gpu(64), gpu(64, 32), gpu(32)],
    aten.sum.dim_IntList: [gpu(3, 1 << 20), [1], False],
    aten.amax.default: [gpu(3, 1 << 20), [1], True],
    aten.linalg_vector_norm.default: [gpu(3, 1 << 20), 2, [1], False],
    aten.argmax.default: [gpu(3, 1 << 20), 1, False],
    aten.max.dim: [gpu(3, 1 << 20), 1, True],
    aten.var_mean.correction: [gpu(3, 1 << 20), [1]],
    aten.count_nonzero.dim_IntList: [gpu(3, 1 << 20), [1]],
    aten.sort.default: [gpu(7, 5000), 1, True],
    aten.topk.default: [gpu(2, 70_000), 5000, 1, True, True],
    aten.cumsum.default: [gpu(1, 5000, dtype=HALF), 1],
    aten.multinomial.default: [gpu(3, 50), 5, False],
    aten.kthvalue.default: [gpu(3, 50), 2, 1, False],
    aten.nll_loss2d_forward.default: [gpu(2, 3, 4, 4), gpu(2, 4, 4, dtype=LONG), gpu(3), 1, -100],
    aten.huber_loss.default: [gpu(100), gpu(100), 1, 1.0],
    aten.multi_margin_loss.default: [gpu(9, 5), gpu(9, dtype=LONG), 1, 1.0, gpu(5), 1],
    aten.native_layer_norm.default: [gpu(9, 50), [50], gpu(50), gpu(50), 1e-5],
    aten.native_group_norm.default: [gpu(2, 6, 9, dtype=HALF), *[gpu(6, dtype=HALF)] * 2, 2, 6, 9, 3, 1e-5],
    aten.native_batch_norm.default: [gpu(9000, 6), gpu(6), gpu(6), gpu(6), gpu(6), True, 0.1, 1e-5],
    aten._fused_rms_norm.default: [gpu(9, 50), [50], gpu(50), 1e-5],
    aten.native_dropout.default: [gpu(9, 50), 0.1, True],
    aten.pow.Tensor_Scalar: [gpu(9, 50, dtype=LONG), 0.5],
    aten._softmax.default: [gpu(9, 50), 1, False],
    aten._foreach_norm.Scalar: [lists(gpu(70_000), gpu(0), gpu(9)), 2, torch.float32],
    aten.embedding_dense_backward.default: [gpu(5000, 8), gpu(5000, dtype=LONG), 100, -1, False],
    aten.index.Tensor: [gpu(9, 50), lists(gpu(4, dtype=torch.int32))],
    aten.index_put.default: [gpu(9, 50), lists(gpu(4, dtype=LONG)), gpu(4, 50), True],
    aten.unfold_backward.default: [gpu(3, 8), [10], 0, 8, 1],
    aten.max_pool2d_with_indices.default: [gpu(1, 2, 8, 8), [2, 2], [2, 2], [0, 0], [1, 1], False],
    aten.avg_pool3d.default: [gpu(1, 2, 8, 8, 8), [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None],
    aten.upsample_nearest2d.default: [gpu(1, 2, 8, 8), [16, 16], 2.0, 2.0],
    aten.copy_.default: [gpu(9, 50), lambda: torch.empty(9, 50, dtype=HALF), True],
    aten._scaled_dot_product_flash_attention.default: [*[gpu(1, 2, 512, 64, dtype=HALF)] * 3, 0.1, True, False],
    aten._scaled_dot_product_efficient_attention.default: [*[gpu(1, 2, 9, 160, dtype=HALF)] * 3, None, True, 0.0, True],
}  # fmt: skip


RULES = [one.operator for one in op_spec.specs() if one.allocate is not None]


def events(operator, values, by_position: int):
    """What the allocator does in a call whose first `by_position` arguments are given by position, the rest by name."""
    with simgpu.simulated_gpu("A100-80GB"):
        values = [value() if callable(value) else value for value in values]
        names = [argument.name for argument in operator._schema.arguments]
        torch.cuda.memory._record_memory_history()
        kept = operator(*values[:by_position], **dict(zip(names[by_position:], values[by_position:], strict=False)))
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(None)
        del kept
    return [(event["action"], event["size"]) for event in trace if event["action"] in ("alloc", "free_completed")]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_call_takes_the_same_by_position_and_by_name(data):
    operator = data.draw(st.sampled_from(sorted(CALLS, key=str)))
    values = CALLS[operator]
    assert operator in RULES
    by_position = data.draw(st.integers(0, len(values)))
    assert events(operator, values, by_position) == events(operator, values, len(values)) != []


@given(st.sampled_from(sorted(RULES, key=str)), st.data())
def test_a_launch_finds_an_argument_however_it_was_given(operator, data):
    """What a dispatch mode is handed is in one form; a Python function that calls a rule may choose another."""
    schema = operator._schema.arguments
    positions = [argument for argument in schema if not argument.kwarg_only]
    given_names = [a.name for a in schema if not a.has_default_value() or data.draw(st.booleans())]
    split = data.draw(st.integers(0, len(positions)))
    by_position = []
    for argument in positions[:split]:
        if argument.name not in given_names:
            break
        by_position.append(argument.name)
    by_name = {name: name for name in given_names if name not in by_position}
    call = OpCall(operator, tuple(by_position), by_name, (), None, False, None)
    for argument in schema:
        assert call[argument.name] == (argument.name if argument.name in given_names else argument.default_value)
    names = tuple(argument.name for argument in schema)
    assert call[names] == tuple(call[name] for name in names)
    assert call.first == schema[0].name
    assert call.get("no such argument") is None


def test_a_name_that_the_schema_does_not_have_is_an_error():
    with pytest.raises(KeyError, match="dropout"):
        arguments.given(aten.mm.default, "dropout", (), {})
