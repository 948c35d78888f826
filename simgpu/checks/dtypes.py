"""Raises CUDA's errors for dtypes that its kernels refuse, from simgpu/data/kernel_dtypes.json and seldom_dtypes.json.

CUDA's kernels are compiled for the dtypes that an AT_DISPATCH macro lists (aten/src/ATen/native/cuda), and read other
tensors as of the dtype of one. PyTorch's meta kernels know only shapes, so they accept any. Which dtypes each kernel
refuses, with which text, and which argument's dtype decides was found with PyTorch 2.13's CUDA host code, operator by
operator (`python -m tools.oracle.dtypes`, and `.seldom` for eight-bit floats and unsigned integers). There is an entry
only if one rule agrees with every call that was tried.
"""

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from simgpu.checks.scalar_types import NAMES, SELDOM, legacy_name, name
from simgpu.op_info import arguments
from simgpu.op_info.inplace_out_variants import variants
from simgpu.op_info.per_op_cache import per_op_cache

FILE = Path(__file__).parents[1] / "data" / "kernel_dtypes.json"
SELDOM_FILE = FILE.with_name("seldom_dtypes.json")  # for eight-bit floats and unsigned integers
REMEMBERED = 500  # signatures per operator that are known to pass
KINDS = {"NotImplementedError": NotImplementedError, "IndexError": IndexError, "TypeError": TypeError,
         "ValueError": ValueError}  # fmt: skip


class Entry(NamedTuple):
    """One refusal.

    `of` says whose dtype decides: "arg:self"; "common", TensorIterator's common dtype of all inputs, "commonnum"
    including Python numbers, "commonfloat" with integers converted to floats; "kw:dtype"; "kwor", the argument dtype or
    else the first tensor's. It refuses the dtypes in `refused`, or if that is empty, any that differs from the `other`
    argument's. `empty` and `scalar` say whether it does so if a tensor is empty, and if the first has no dims. `when`
    is a condition on the call's other arguments, by name; None for no condition.
    """

    says: str
    of: str
    other: str | None
    refused: frozenset
    empty: bool
    scalar: bool
    when: Callable[[Callable[[str], Any]], bool] | None = None


_NO_PARTS = frozenset(NAMES) - {torch.float16, torch.float32, torch.float64}
_FLOATS = "RuntimeError: Expected both inputs to be Half, Float or Double tensors but got {at0} and {at1}"
_SWAPPED = _FLOATS.replace("{at0} and {at1}", "{at1} and {at0}")
_SECOND = "RuntimeError: Expected object of scalar type {at0} but got scalar type {at1} for second argument"


def _of_parts(first: str, second: str) -> list[Entry]:
    """Returns the entries of complex_check_floating and complex_check_dtype (TensorFactories.cpp)."""
    return [
        Entry(_FLOATS, first, second, _NO_PARTS, empty=True, scalar=True),
        Entry(_SWAPPED, second, first, _NO_PARTS, empty=True, scalar=True),
        Entry(_SECOND, first, second, frozenset(), empty=True, scalar=True),
    ]


_SELDOM = frozenset(SELDOM)
_ALL = frozenset(NAMES) | _SELDOM
_FLOATING = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_HALVES = {torch.float16, torch.bfloat16}
_WHOLE = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_COMPLEX = {torch.complex32, torch.complex64, torch.complex128}
_BLAS = {torch.float32, torch.float64, torch.complex64, torch.complex128}


def _refuses(kernel: str, of: str, *refused, empty: bool = False, scalar: bool = True, when=None) -> Entry:
    """Returns the entry with AT_DISPATCH's text for a dtype without a kernel."""
    says = f"NotImplementedError: \"{kernel}\" not implemented for '{{at0}}'"
    return Entry(says, of, None, frozenset().union(*refused), empty, scalar, when)


_NO_RANGE = {torch.bool, torch.complex32}
_INDICES = {torch.int32, torch.int64}
_SCATTER = "cuda_scatter_gather_base_kernel_func"
_SCATTER_FILL = "cuda_scatter_fill_base_kernel"


def _of_cdist(which: str) -> Entry:
    says = f"RuntimeError: cdist only supports floating-point dtypes, {which.upper()} got: {{at0}}"
    return Entry(says, f"arg:{which}", None, _ALL - _FLOATING, empty=True, scalar=True)


def _random_bounds(of: str, low: str | None, high: str | None) -> list[Entry]:
    """Returns the entries of random_from_to for complex dtypes, and for numbers outside a dtype's range.

    (aten/src/ATen/native/DistributionTemplates.h) `low` and `high` are the names of the arguments; without `low` it is
    0.
    """
    says = "RuntimeError: check_random_bounds handles only integral, floating-point and boolean types"
    found = [
        Entry(says, of, None, frozenset(_COMPLEX), empty=True, scalar=True, when=partial(_are_in_order, low, high))
    ]
    for dtype in (*_WHOLE, torch.bool, torch.float16):
        for what, which in (("from", low), ("to - 1", high)):
            says = f"RuntimeError: {what} is out of bounds for {{cpp0}}"
            outside = partial(_is_outside, dtype, which, low, high)
            found.append(Entry(says, of, None, frozenset({dtype}), empty=True, scalar=True, when=outside))
    return found


def _are_in_order(low: str | None, high: str | None, given) -> bool:
    """Returns whether the bounds are in order; PyTorch itself raises the error if they are not, here too."""
    return high is None or given(high) is None or (given(low) if low else 0) < given(high)


def _is_outside(dtype: torch.dtype, which: str | None, low: str | None, high: str | None, given) -> bool:
    if which is None or given(which) is None or not _are_in_order(low, high, given):
        return False
    if dtype == torch.bool:
        least, most = 0, 1
    else:
        numbers = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        least, most = int(numbers.min), int(numbers.max)
    return not least <= given(which) - (which == high) <= most


def _has_both_bounds(given) -> bool:
    return given("min") is not None and given("max") is not None


def _has_steps(given) -> bool:
    return given("steps") > 1


def _has_any(given) -> bool:
    return given("n") > 0


def _reaches_the_kernel(given, other: str = "src") -> bool:
    """Returns whether an index reduction passes the earlier checks: equal dtypes, and an integer index."""
    return given(other).dtype == given("self").dtype and given("index").dtype in _INDICES


def _is_no_sum(given) -> bool:
    return given("reduce") != "sum" and _reaches_the_kernel(given)


def _includes_self(given) -> bool:
    return bool(given("include_self")) and _reaches_the_kernel(given)


def _are_of_one_dtype(given) -> bool:
    return all(one is None or one.dtype == given("self").dtype for one in (given("target"), given("weight")))


def _multiplies(given) -> bool:
    return given("reduce") == "multiply"


def _sorts(few: bool, given) -> bool:
    """Returns whether there is something to sort, in short rows if `few`, else in longer ones.

    (cuda/Sort.cpp, should_use_small_sort)
    """
    tensor = given("self")
    return tensor.numel() > 1 and tensor.dim() > 0 and (tensor.shape[given("dim")] <= 4096) == few


# Refusals that no rule of one argument's dtype, or of two different ones, expresses, and operators that were not tried,
# from PyTorch's source: the file, and the macro's list of dtypes.
BY_HAND = {
    # aten/src/ATen/native/Cross.cpp: TensorIterator needs one dtype; cuda/CrossKernel.cu
    "aten::linalg_cross": [
        Entry("RuntimeError: Found dtype {at0} but expected {at1}", "arg:other", "arg:self", frozenset(), True, True),
        _refuses("cross_cuda", "arg:self", {torch.bool, torch.complex32}),
    ],
    "aten::complex": _of_parts("arg:real", "arg:imag"),
    "aten::polar": [
        *_of_parts("arg:abs", "arg:angle"),
        _refuses("polar_cuda", "arg:abs", {torch.float16}, empty=True),
    ],
    # cuda/linalg/BatchLinearAlgebra.cpp, triangular_solve_kernel
    "aten::linalg_solve_triangular": [_refuses("triangular_solve_cuda", "arg:self", _ALL - _BLAS, empty=True)],
    # cuda/Embedding.cu, EmbeddingBag.cu, TensorModeKernel.cu, Im2Col.cu, group_norm_kernel.cu, Activation...Kernel.cu
    "aten::embedding_renorm_": [_refuses("embedding_renorm_cuda_", "arg:self", _ALL - _FLOATING)],
    "aten::_embedding_bag_forward_only": [_refuses("embedding_bag_cuda", "arg:weight", _ALL - _FLOATING)],
    "aten::mode": [_refuses("cuda_mode", "arg:self", _COMPLEX, _SELDOM, scalar=False)],
    "aten::im2col": [_refuses("im2col_out_cuda", "arg:self", _WHOLE, {torch.complex32}, empty=True)],
    "aten::native_group_norm": [_refuses("GroupNormKernelImpl", "arg:input", _ALL - _FLOATING, empty=True)],
    "aten::log_sigmoid_forward": [_refuses("log_sigmoid_forward_cuda", "arg:self", _ALL - _FLOATING, empty=True)],
    # cuda/DistanceKernel.cu: AT_DISPATCH_FLOATING_TYPES
    "aten::_cdist_forward": [*map(_of_cdist, ("x1", "x2")), _refuses("cdist_cuda", "arg:x1", _HALVES)],
    "aten::_pdist_forward": [_refuses("pdist_cuda", "arg:self", _HALVES)],
    # cuda/TensorCompare.cu, cuda/CumsumKernel.cu, cuda/CumprodKernel.cu: the requested dtype decides, not the given one
    "aten::clamp.Tensor": [_refuses("clamp_cuda", "common", {torch.bool}, when=_has_both_bounds)],
    "aten::cumsum": [_refuses("cumsum_cuda", "kw:dtype", {torch.bool}, _SELDOM, scalar=False)],
    "aten::cumprod": [_refuses("cumprod_cuda", "kw:dtype", {torch.bool}, _SELDOM, scalar=False)],
    "aten::cumsum.out": [_refuses("cumsum_cuda", "arg:out", _NO_RANGE, scalar=False)],
    "aten::cumprod.out": [_refuses("cumprod_cuda", "arg:out", _NO_RANGE, scalar=False)],
    # cuda/Bucketization.cu: the dtype of a sorter's indices does not count
    "aten::searchsorted.Tensor": [_refuses("searchsorted_out_cuda", "arg:self", {torch.bool}, _COMPLEX)],
    "aten::searchsorted.Scalar": [_refuses("searchsorted_out_cuda", "arg:sorted_sequence", _COMPLEX)],
    # cuda/UnfoldBackwardKernel.cu, cuda/Col2Im.cu, cuda/Loss.cu
    "aten::unfold_backward": [_refuses("unfold_backward_cuda", "arg:grad_in", {torch.complex32})],
    "aten::col2im": [_refuses("col2im_out_cuda", "arg:self", _WHOLE, {torch.complex32}, empty=True)],
    "aten::binary_cross_entropy": [
        _refuses("binary_cross_entropy_out_cuda", "arg:self", _ALL - _FLOATING, empty=True, when=_are_of_one_dtype)
    ],
    # cuda/SortStable.cu, cuda/Sort.cu; cuda/BinaryShiftOpsKernels.cu: AT_DISPATCH_INTEGRAL_TYPES
    **{
        f"aten::sort{form}": [
            _refuses("sortKeyValueInplace", "arg:self", _SELDOM, when=partial(_sorts, True)),
            _refuses("sort", "arg:self", _SELDOM, when=partial(_sorts, False)),
        ]
        for form in ("", ".stable")
    },
    **{
        f"aten::__{name}__.{form}": [
            _refuses(f"{name[1:] if name[0] == 'i' else name}_cuda", "common", _SELDOM, empty=True)
        ]
        for name in ("lshift", "rshift", "ilshift", "irshift")
        for form in ("Scalar", "Tensor")
    },
    # cuda/RangeFactories.cu, cuda/Randperm.cu, cuda/TriangularOps.cu: no tensor's dtype decides, but the requested one
    "aten::linspace": [_refuses("linspace_cuda", "kw:dtype", _NO_RANGE, when=_has_steps)],
    "aten::logspace": [_refuses("logspace_cuda", "kw:dtype", _NO_RANGE, when=_has_steps)],
    **{f"aten::randint{name}": _random_bounds("kw:dtype", None, "high") for name in ("", ".generator")},
    **{f"aten::randint.{name}": _random_bounds("kw:dtype", "low", "high") for name in ("low", "low_generator")},
    "aten::randint_like": _random_bounds("kwor", None, "high"),
    "aten::randint_like.low_dtype": _random_bounds("kwor", "low", "high"),
    "aten::random_.to": _random_bounds("arg:self", None, "to"),
    "aten::random_.from": _random_bounds("arg:self", "from", "to"),
    "aten::random_": [_refuses("random_kernel_cuda", "arg:self", _COMPLEX, empty=True)],
    "aten::randperm": [
        _refuses("randperm_out_cuda", "kw:dtype", {torch.bfloat16}, when=_has_any),
        _refuses("arange_cuda", "kw:dtype", {torch.bool}, _COMPLEX, _SELDOM, when=_has_any),
    ],
    "aten::triu_indices": [_refuses("triu_indices_cuda", "kw:dtype", _ALL - _INDICES)],
    "aten::tril_indices": [_refuses("tril_indices_cuda", "kw:dtype", _ALL - _INDICES)],
    # cuda/ScatterGatherKernel.cu, cuda/Indexing.cu: sums support more dtypes than products, means and extremes
    **{
        f"aten::scatter_reduce{place}.two": [
            _refuses(_SCATTER, "arg:self", {torch.bool, torch.complex64, torch.complex128}, when=_is_no_sum),
            _refuses(_SCATTER, "arg:self", {torch.complex32}, when=_includes_self),
        ]
        for place in ("", "_")
    },
    **{
        f"aten::scatter{place}.reduce": [
            _refuses(_SCATTER, "arg:self", {torch.complex32}),
            _refuses(_SCATTER, "arg:self", {torch.bool}, _COMPLEX, when=_multiplies),
        ]
        for place in ("", "_")
    },
    **{
        f"aten::scatter{place}.value_reduce": [
            _refuses(f"{_SCATTER_FILL}_reduce_multiply", "arg:self", {torch.bool}, _COMPLEX, when=_multiplies),
            _refuses(f"{_SCATTER_FILL}_func", "arg:self", {torch.complex32}),
        ]
        for place in ("", "_")
    },
    **{
        f"aten::index_reduce{place}": [
            _refuses(
                "index_reduce", "arg:source", {torch.bool}, _COMPLEX, when=partial(_reaches_the_kernel, other="source")
            )
        ]
        for place in ("", "_")
    },
}


class Checks:
    """The entries of one operator, in the order in which CUDA's code reaches them."""

    __slots__ = ("entries", "fine", "of_dtypes_alone", "passed")

    def __init__(self, entries: list[Entry]):
        self.entries = entries
        refused = frozenset().union(*(entry.refused for entry in entries))
        self.fine = {dtype for dtype in NAMES if dtype.is_floating_point} - refused
        self.passed: set = set()
        self.of_dtypes_alone = not any(entry.when for entry in entries)


@cache
def _table() -> dict[str, list[Entry]]:
    """Returns the entries of the files by the name of the overload."""
    found = dict(BY_HAND)
    for file in (FILE, SELDOM_FILE):
        kept = json.loads(file.read_text(encoding="utf-8"))
        for operator, rows in kept["operators"].items():
            found[operator] = found.get(operator, []) + [
                Entry(kept["texts"][text], of, other, frozenset(map(_dtype, refused.split())), empty, dims)
                for text, of, other, refused, empty, dims in rows
            ]
    return found


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


@per_op_cache
def checks_of(operator) -> Checks | None:
    """Returns CUDA's dtype checks of an OpOverload, its own or those of one with the same CUDA code, or None."""
    if getattr(operator, "namespace", None) != "aten":
        return None
    entries = _table().get(operator.name())
    if entries is None:
        for other in _same_code(operator):
            entries = entries or _table().get(other.name())
    return Checks(entries) if entries else None


def _same_code(operator):
    """Yields the overloads of which it is the out= or the in-place form."""
    packets = {operator._opname, operator._opname.removesuffix("_")}
    for packet in filter(None, (getattr(torch.ops.aten, one, None) for one in packets)):
        for overload in packet.overloads():
            other = getattr(packet, overload)
            if other is not operator and operator in variants(other):
                yield other


def check(checks: Checks, operator, args: tuple, kwargs: dict, tensors: list) -> None:
    """Raises CUDA's error for a call of `operator` with refused dtypes. `tensors` are those among its arguments."""
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) == 1 and not kwargs and checks.fine.issuperset(kinds):
        return
    signature = (*map(_signature, args), *((key, _signature(value)) for key, value in kwargs.items()))
    if signature in checks.passed:
        return
    call = _Call(operator, args, kwargs)
    fires = False
    empty = any(not tensor.numel() for tensor in tensors)
    scalar = bool(tensors) and not tensors[0].dim()
    for entry in checks.entries:
        message = call.refused(entry)
        if message is not None:
            fires = True
            if (entry.empty or not empty) and (entry.scalar or not scalar):
                kind, _, text = message.partition(": ")
                raise KINDS.get(kind, RuntimeError)(text)
    if not fires and checks.of_dtypes_alone and len(checks.passed) < REMEMBERED:
        checks.passed.add(signature)


def _signature(value):
    """Returns everything in an argument that a check may depend on, hashable, without sizes, since then no entry
    fires.
    """
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim() == 0
    if isinstance(value, (list, tuple)):
        return tuple(map(_signature, value))
    return value if isinstance(value, torch.dtype) else type(value)


def _tensors(value) -> list:
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for one in value if isinstance(one, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def _order(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else int(dtype != torch.bool)


class _Call:
    """The dtypes of one call."""

    __slots__ = ("args", "kwargs", "operator", "_known")

    def __init__(self, operator, args: tuple, kwargs: dict):
        self.operator, self.args, self.kwargs = operator, args, kwargs
        self._known: dict[str, torch.dtype | None] = {}

    def refused(self, entry: Entry) -> str | None:
        """Returns the error text of an entry that refuses the dtypes of this call, or None."""
        decides = self.dtype(entry.of)
        if decides is None:
            return None
        if entry.refused and decides not in entry.refused:
            return None
        if entry.when is not None and not entry.when(self._given):
            return None
        if entry.other is None:
            return _filled(entry.says, decides)
        other = self.dtype(entry.other)
        return (
            None if other is None or (other == decides and not entry.refused) else _filled(entry.says, decides, other)
        )

    def dtype(self, of: str) -> torch.dtype | None:
        """Returns the dtype that `Entry.of` names, or None if there is no such tensor, or a list of several dtypes."""
        if of not in self._known:
            self._known[of] = self._found(of)
        return self._known[of]

    def _found(self, of: str) -> torch.dtype | None:
        kind, _, which = of.partition(":")
        if kind == "arg" and arguments.has(self.operator, which):
            dtypes = {one.dtype for one in _tensors(self._given(which))}
            return dtypes.pop() if len(dtypes) == 1 else None
        if kind == "kw" and arguments.has(self.operator, which):
            return self._given(which)
        if kind == "kwor":
            told = self._given("dtype") if arguments.has(self.operator, "dtype") else None
            return told or next((one.dtype for _, value in self._read() for one in _tensors(value)), None)
        if kind == "commonfloat":
            dtype = self.dtype("common")
            return dtype if dtype is None or _order(dtype) > 1 else torch.get_default_dtype()
        return self._common(kind == "commonnum") if kind.startswith("common") else None

    def _given(self, which: str) -> Any:
        return arguments.given(self.operator, which, self.args, self.kwargs)

    def _read(self):
        """Yields name and value of each argument that is not written through out=."""
        for argument in self.operator._schema.arguments:
            if not argument.is_out:
                yield argument, self._given(argument.name)

    def _common(self, numbers: bool) -> torch.dtype | None:
        """Returns torch.result_type of all tensors, and of numbers (c10: update_result_type_state,
        combine_categories).
        """
        found: list[torch.dtype | None] = [None, None, None]  # of tensors with dims, of those without, of numbers
        for argument, value in self._read():
            if isinstance(value, (bool, int, float, complex)) and str(argument.type) in ("number", "Scalar", "Tensor"):
                place, dtypes = 2, [_of_number(value)] if numbers else []
                found[place] = _promoted(found[place], *dtypes)
            for tensor in _tensors(value):
                place = int(not tensor.dim())
                found[place] = _promoted(found[place], tensor.dtype)
        result = found[0]
        for dtype in found[1:]:
            if dtype is not None and (result is None or _order(dtype) > _order(result)):
                result = _promoted(result, dtype)
        return result


def _promoted(first: torch.dtype | None, *others: torch.dtype) -> torch.dtype | None:
    for other in others:
        first = other if first is None else torch.promote_types(first, other)
    return first


def _of_number(value) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int):
        return torch.int64
    default = torch.get_default_dtype()
    return default.to_complex() if isinstance(value, complex) else default


def _filled(text: str, *dtypes: torch.dtype) -> str:
    """Replaces {at0}, {cpp0}, {legacy0} and {py0} in a text by the names of dtypes."""
    for place, dtype in enumerate(dtypes):
        forms = {"at": name(dtype), "cpp": NAMES[dtype][0] if dtype in NAMES else str(dtype),
                 "legacy": legacy_name(dtype), "py": str(dtype).removeprefix("torch.")}  # fmt: skip
        for form, spelled in forms.items():
            text = text.replace(f"{{{form}{place}}}", spelled)
    return text
