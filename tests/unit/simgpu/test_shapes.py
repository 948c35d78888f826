"""Shapes of results that are found without PyTorch's meta functions, against those."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import simgpu
from simgpu.shapes import optimizers
from simgpu.storage import layout, meta_cache

_aten = torch.ops.aten
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
sizes = st.integers(0, 7)


@pytest.fixture(autouse=True)
def nothing_remembered():
    meta_cache.forget()
    yield
    meta_cache.forget()


@st.composite
def tensors(draw, shape, dtype):
    """A meta tensor of a shape, laid out in any order, with gaps or expanded."""
    order = draw(st.permutations(range(len(shape))))
    step = draw(st.sampled_from([1, 1, 1, 2]))
    wide = torch.empty([shape[dim] * step for dim in order], dtype=dtype, device="meta")
    gaps = wide[tuple(slice(None, None, step) for _ in shape)]
    tensor = gaps.permute(sorted(range(len(shape)), key=order.__getitem__))
    if draw(st.booleans()) and shape:
        tensor = tensor[..., :1].expand(shape) if shape[-1] else tensor
    return tensor


def described(result):
    """What counts in a result: the kind of sequence, and of each tensor all of its metadata."""
    if isinstance(result, (list, tuple)):
        return type(result), [described(one) for one in result]
    if not isinstance(result, torch.Tensor):
        return result
    storage, keys = result.untyped_storage().nbytes(), torch._C._dispatch_keys(result)
    return result.shape, result.stride(), result.dtype, result.storage_offset(), storage, keys


@st.composite
def layer_norms(draw):
    dtype, shape = draw(st.sampled_from(FLOATS)), draw(st.lists(sizes, min_size=1, max_size=4))
    inner = draw(st.integers(1, len(shape)))
    tensor = draw(tensors(shape, dtype))
    weight, bias = (draw(st.none() | tensors(shape[-inner:], dtype)) for _ in range(2))
    return _aten.native_layer_norm.default, (tensor, shape[-inner:], weight, bias, 1e-5), {}


@st.composite
def layer_norms_backward(draw):
    operator, (tensor, inner, weight, bias, eps), _ = draw(layer_norms())
    _, mean, rstd = operator(tensor, inner, weight, bias, eps)
    mask = [draw(st.booleans()), weight is not None and draw(st.booleans()), bias is not None and draw(st.booleans())]
    grad = draw(tensors(list(tensor.shape), tensor.dtype))
    return _aten.native_layer_norm_backward.default, (grad, tensor, inner, mean, rstd, weight, bias, mask), {}


@st.composite
def dropouts(draw):
    tensor = draw(tensors(draw(st.lists(sizes, max_size=4)), draw(st.sampled_from(FLOATS))))
    return _aten.native_dropout.default, (tensor, draw(st.floats(0, 1)), draw(st.sampled_from([None, True, False]))), {}


@st.composite
def dropouts_backward(draw):
    shape = draw(st.lists(sizes, max_size=4))
    grad, mask = draw(tensors(shape, draw(st.sampled_from(FLOATS)))), draw(tensors(shape, torch.bool))
    return _aten.native_dropout_backward.default, (grad, mask, 2.0), {}


@st.composite
def convolutions(draw):
    dtype, groups = draw(st.sampled_from(FLOATS)), draw(st.integers(1, 2))
    shape = [draw(st.integers(1, 3)), 2 * groups, draw(st.integers(4, 7)), draw(st.integers(4, 7))]
    weight = draw(tensors([2 * groups, 2, draw(st.integers(1, 3)), draw(st.integers(1, 3))], dtype))
    options = ([draw(st.integers(1, 2))] * 2, [draw(st.integers(0, 1))] * 2, [1, 1], False, [0, 0], groups)
    return _aten.convolution.default, (draw(tensors(shape, dtype)), weight, None, *options), {}


@st.composite
def copies(draw):
    dtype, shape = draw(st.sampled_from(FLOATS)), draw(st.lists(sizes, min_size=1, max_size=4))
    options = draw(st.sampled_from([{}, {"memory_format": torch.contiguous_format}]))
    operator = draw(st.sampled_from([_aten.clone.default, _aten.ones_like.default]))
    return operator, (draw(tensors(shape, dtype)),), options


CALLS = {
    "layer norm": layer_norms(),
    "its backward": layer_norms_backward(),
    "dropout": dropouts(),
    "dropout's backward": dropouts_backward(),
    "convolution": convolutions(),
    "copy": copies(),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_remembered_is_what_pytorch_said(name):
    @given(CALLS[name])
    def check(call):
        operator, args, kwargs = call
        try:
            theirs = operator(*args, **kwargs)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                meta_cache.run(operator, args, kwargs)
            return
        first, second = (meta_cache.run(operator, args, kwargs) for _ in range(2))
        assert described(first) == described(second) == described(theirs)

    check()


def test_an_operator_is_asked_once(monkeypatch):
    tensor = torch.empty(3, 4, device="meta")
    first = meta_cache.run(_aten.clone.default, (tensor,), {})
    monkeypatch.setattr(torch._ops.OpOverload, "__call__", None)
    second = meta_cache.run(_aten.clone.default, (tensor,), {})
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


def test_results_that_share_memory_are_not_remembered():
    tensor = torch.empty(3, 4, device="meta")
    for _ in range(2):
        result = meta_cache.run(_aten._unsafe_view.default, (tensor, [12]), {})
        assert result.untyped_storage()._cdata == tensor.untyped_storage()._cdata


def test_neither_are_values_of_the_host():
    """How a tensor is split may stand in another one."""
    tensor = torch.empty(6, device="meta")
    for where in ([2], [4]):
        parts = meta_cache.run(_aten.tensor_split.tensor_indices_or_sections, (tensor, torch.tensor(where)), {})
        assert len(parts[0]) == where[0]


def test_nor_what_deterministic_algorithms_would_refuse():
    tensor = torch.empty(6, device="meta")
    meta_cache.run(_aten.median.dim, (tensor, 0), {})
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"), simgpu.simulated_gpu():
            torch.empty(6, device="cuda").median(0)
    finally:
        torch.use_deterministic_algorithms(False)


def overloads():
    """Every operator on lists whose results `lists` may find, overload by overload."""
    for name in sorted(optimizers._NAMES | {f"{name}_" for name in optimizers._NAMES}):
        packet = getattr(_aten, name, None)
        for overload in packet.overloads() if packet else ():
            operator = getattr(packet, overload)
            if optimizers._writes(operator) is not None:
                yield operator


OVERLOADS = list(overloads())


def operands(operator, given_lists, number=0.5):
    """Arguments for such an operator from lists of tensors."""
    given_lists = list(given_lists)
    args = []
    for argument in operator._schema.arguments:
        kind = str(argument.type)
        if kind == "List[Tensor]":
            args.append(given_lists.pop(0))
        elif kind == "Tensor":
            args.append(torch.empty((), dtype=args[0][0].dtype, device="meta"))
        elif "List" in kind:
            args.append([number] * len(args[0]))
        elif not argument.kwarg_only:
            args.append(number)
    return tuple(args)


@st.composite
def lists_of_tensors(draw):
    """Four lists of tensors: mostly alike and dense, as optimizers have, and sometimes not."""
    columns = []
    for _ in range(draw(st.integers(1, 3))):
        shape, dtype = draw(st.lists(st.integers(2, 5), max_size=3)), draw(st.sampled_from(FLOATS))
        first = draw(tensors(shape, dtype))
        odd = draw(st.sampled_from([False, False, True]))
        columns.append([draw(tensors(shape, dtype)) if odd else torch.empty_like(first) for _ in range(4)])
    return list(zip(*columns, strict=True))


def is_expanded(tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


@pytest.mark.parametrize("operator", OVERLOADS, ids=str)
def test_lists_come_out_as_pytorch_s(operator):
    @settings(max_examples=10)
    @given(lists_of_tensors())
    def check(given_lists):
        args = operands(operator, map(list, given_lists))
        writes = operator._opname.endswith("_") and operator._opname != "_foreach_zero_"
        if writes and any(map(is_expanded, args[0])):  # meta tensors would take it
            with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
                optimizers.results(operator, args, {})
            return
        ours = optimizers.results(operator, args, {})
        if ours is not NotImplemented:
            theirs = operator(*args)
            assert described(ours) == described(None if theirs is None else list(theirs))

    check()


@pytest.mark.parametrize("operator", OVERLOADS, ids=str)
def test_lists_as_optimizers_have_them_are_answered(operator):
    alike = [[torch.empty(3, 4, device="meta"), torch.empty(5, device="meta")] for _ in range(4)]
    assert optimizers.results(operator, operands(operator, alike), {}) is not NotImplemented


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.to(torch.int64),
        lambda tensor: tensor[:1],
        lambda tensor: tensor[:, :1].expand(3, 4),
        lambda tensor: torch.empty(3, 4),
    ],
)
def test_other_lists_are_left_to_pytorch(change):
    alike = [[torch.empty(3, 4, device="meta")] for _ in range(3)]
    for position in range(3):
        changed = [[change(one[0])] if i == position else one for i, one in enumerate(alike)]
        if position == 0 and is_expanded(changed[0][0]):
            with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
                optimizers.results(_aten._foreach_addcmul_.Scalar, (*changed, 0.5), {})
        elif position == 0 or change(alike[0][0]).shape != (3, 4) or not change(alike[0][0]).is_meta:
            assert optimizers.results(_aten._foreach_addcmul_.Scalar, (*changed, 0.5), {}) is NotImplemented
        assert optimizers.results(_aten._foreach_addcmul.Scalar, (*changed, 0.5), {}) is NotImplemented


@given(st.data(), st.sampled_from(optimizers.OPERATORS), st.sampled_from(FLOATS), st.lists(sizes, max_size=4))
@settings(deadline=None)
def test_what_writes_in_place_returns_what_it_wrote_to(data, operator, dtype, shape):
    last = 0.5 if operator is _aten.lerp_.Scalar else data.draw(tensors(shape, dtype))
    args = data.draw(tensors(shape, dtype)), data.draw(tensors(shape, dtype)), last
    before = described(args[0])
    found = optimizers.result(operator, args, {})
    if found is NotImplemented:  # a tensor with gaps or expanded, which PyTorch may refuse to write to
        assert not layout.is_dense(args[0])
    else:
        assert found is operator(*args) is args[0] and described(found) == before


def test_what_is_not_alike_is_left_to_pytorch():
    x, y = torch.empty(3, 4, device="meta"), torch.empty(4, device="meta")
    for args in ((x, x, y), (y, x, x), (x, x, x.double()), (x.long(), x, x), (x, x, torch.empty(3, 4)), (x, x)):
        assert optimizers.result(_aten.addcmul_.default, args, {}) is NotImplemented
    assert optimizers.result(_aten.addcmul_.default, (x, x, x), {"value": 2}) is x
    assert optimizers.result(_aten.add_.Tensor, (x, x, x), {}) is NotImplemented
