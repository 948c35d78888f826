"""Handles autograd formulas that behave differently on meta tensors, or under a dispatch mode, than on CUDA.

The formulas are C++ (torch/csrc/autograd/FunctionsManual.cpp). Those that check `areAnyTensorSubclassLike` continue in
a tensor that they have just made, while here they make a second one. Those that check the device treat a meta tensor
like the CPU's. What is visible here is the operator that such a formula calls. CALLS lists each such operator, what
made its first operand, and what CUDA does. Formulas that are operators of their own (gather_backward) are in
`ops/gradients.py`.

If other formulas make the same call intentionally, the name of the formula's node decides. A node that Python has
accessed releases what it leads to in a different order, so nodes are accessed only once an operator with that formula
has run.
"""

from typing import NamedTuple

import torch

from simgpu.op_info.op_spec import declare, mark, named, spec

_aten = torch.ops.aten
_ADD, _SUB, _MUL = _aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor
IN_PLACE, IN_PLACE_ONCE, ANEW = "in place", "in place, unless its own gradient may be asked for", "anew"
TWICE = "twice"  # represents any operator that ran in a backward whose graph is kept for a second pass


class Made(NamedTuple):
    """The origin of a tensor: an operator, which was the `count`-th to run."""

    operator: object
    count: int


class Call(NamedTuple):
    """One call that a formula makes.

    `operator` is what it calls. `made_by` holds the operators that may have made the first operand; None for any.
    `within` is the most operators since then. `forward` holds the operators with this formula, and `nodes` the names of
    their nodes; both are empty if no other formula makes such a call. `does` is what CUDA does: IN_PLACE;
    IN_PLACE_ONCE, which is in place except in a backward with create_graph=True; or ANEW, if the call looks like the
    engine's in-place sum of gradients (accumulation.py) but allocates a new tensor.
    """

    operator: object
    made_by: frozenset | None
    nodes: frozenset = frozenset()
    forward: frozenset = frozenset()
    within: int = 1000
    does: str = IN_PLACE


def _of(names: str) -> frozenset:
    """Returns OpOverloads of aten by name, as `op_spec.named` does."""
    return frozenset(named(names))


def _sum(nodes: str, forward: str, made_by: str, within: int) -> Call:
    """Returns the Call for a formula's sum of tensors that it has made itself."""
    return Call(_ADD, _of(made_by), frozenset(nodes.split()), _of(forward), within, ANEW)


def _second(node: str, made_by: str, within: int = 1000) -> Call:
    """Returns the Call for such a sum in a second derivative.

    No backward has such a node unless an earlier one kept its graph.
    """
    return Call(_ADD, _of(made_by), frozenset({node}), frozenset({TWICE}), within, ANEW)


_BCE = frozenset({"BinaryCrossEntropyBackward0"}), _of("binary_cross_entropy")
_LOGITS = frozenset({"BinaryCrossEntropyWithLogitsBackward0"}), _of("binary_cross_entropy_with_logits")
_GROUP_NORM = frozenset({"NativeGroupNormBackward0"}), _of("reciprocal_") | {TWICE}

CALLS = (
    # clamp_backward, clamp_backward_min_max; evenly_distribute_backward, of max, min and median of a whole tensor
    Call(_aten.logical_and.default, _of("ge.Tensor lt.Tensor isnan ne.Tensor")),
    Call(_aten.logical_or.default, _of("gt.Tensor")),
    # take_backward
    Call(_aten.put.default, _of("zeros_like")),
    # index_backward
    Call(_aten.index_put.default, _of("new_zeros")),
    # binary_cross_entropy_with_logits_backward, binary_cross_entropy_with_logits_target_backward
    Call(_SUB, _of("sigmoid add.Tensor add.Scalar mul.Tensor"), *_LOGITS, does=IN_PLACE_ONCE),
    Call(_MUL, _of("sub.Tensor mul.Tensor"), *_LOGITS, does=IN_PLACE_ONCE),
    Call(_SUB, _of("log_sigmoid_forward"), *_LOGITS),
    Call(_MUL, _of("log_sigmoid_forward"), *_LOGITS),
    # binary_cross_entropy_target_backward
    Call(_MUL, _of("logit mul.Tensor"), *_BCE),
    # atan2_backward
    Call(_aten.masked_fill.Scalar, _of("reciprocal")),
    # atan2_backward, var_mean_backward, std_mean_backward, logcumsumexp_backward
    _sum("Atan2Backward0", "atan2 atan2_", "mul.Tensor", 2),
    _sum("VarMeanBackward0", "var_mean.correction", "mul.Tensor", 3),
    _sum("StdMeanBackward0", "std_mean.correction", "mul.Tensor", 3),
    _sum("LogcumsumexpBackward0", "logcumsumexp", "flip", 1),
    # i1e_backward
    _sum("SpecialI1EBackward0", "special_i1e", "sgn", 2),
    # mvlgamma_backward
    _sum("MvlgammaBackward0", "mvlgamma mvlgamma_", "arange.start_step", 1),
    # lu_unpack_backward, triangular_solve_backward
    _sum("LuUnpackBackward0", "lu_unpack", "triu tril", 2),
    _sum("TriangularSolveBackward0", "triangular_solve", "neg triu tril", 3),
    # infinitely_differentiable_native_group_norm_backward, which calls var_mean_backward, and reciprocal_ before
    Call(_ADD, _of("mul.Tensor"), *_GROUP_NORM, 3, ANEW),
    Call(_ADD, _of("add.Tensor"), *_GROUP_NORM, 1, ANEW),
    # _convolution_double_backward, in groups and with a bias too
    _second("ConvolutionBackwardBackward0", "convolution cat"),
    _second("ConvolutionBackwardBackward0", "add.Tensor", 3),
    # glu_double_backward, gelu_double_backward (tanh), _prelu_kernel_double_backward
    _second("GluBackwardBackward0", "mul.Tensor", 1),
    _second("GeluBackwardBackward0", "mul.Scalar add.Tensor", 1),
    _second("PreluKernelBackwardBackward0", "mul.Tensor", 1),
    # binary_cross_entropy_double_backward
    _second("BinaryCrossEntropyBackwardBackward0", "sub.Tensor", 1),
)


class Guess(NamedTuple):
    """A formula that behaves differently on CUDA in a way that is not known here.

    It reads values, which a simulated tensor does not have, or it holds something in C++ that Python cannot see.
    `nodes` and `forward` are those of a Call. `name` and `why` are what the warning says.
    """

    nodes: frozenset
    forward: frozenset
    name: str
    why: str


# Keyed by an operator that the formula calls here.
GUESSES = {
    # masked_fill_backward: grad.masked_select(mask).sum()
    _aten.where.self: Guess(
        frozenset({"MaskedFillBackward1"}),
        _of("masked_fill.Tensor masked_fill_.Tensor"),
        "the gradient of masked_fill's value",
        "the elements that its mask selects (how many they are only their values tell)",
    ),
    # _unsafe_masked_index_backward: the kernel writes into the list of indices, which the node's C++ holds to its end
    _aten.new_zeros.default: Guess(
        frozenset({"UnsafeMaskedIndexBackward0"}),
        _of("_unsafe_masked_index"),
        "the gradient of _unsafe_masked_index",
        "the order in which its indices are freed",
    ),
}


def guessed(operator, seen: set) -> Guess | None:
    """Returns the Guess to report when a formula calls `operator`, or None. `seen` holds the operators with a
    formula that ran.
    """
    guess = spec(operator).formula_guess
    return guess if guess is not None and guess.forward & seen and _node() in guess.nodes else None


for _operator in dict.fromkeys(one.operator for one in CALLS):
    declare(_operator, formula_calls=tuple(one for one in CALLS if one.operator is _operator))
for _operator, _guess in GUESSES.items():
    declare(_operator, formula_guess=_guess)
for _operator in frozenset().union(*(one.forward for one in (*CALLS, *GUESSES.values()))) - {TWICE}:
    declare(_operator, has_formula=True)


def concerns(operator) -> bool:
    """Returns whether formulas or the engine call this operator differently on meta tensors than on CUDA."""
    return bool(spec(operator).formula_calls)


def made_by_formula(operator, made: Made | None, count: int, seen: set) -> str | None:
    """Returns what CUDA does (`Call.does`) when a formula calls `operator` on a tensor that nothing else holds.

    `operator` is the `count`-th operator to run. `made` is the tensor's origin, and `seen` holds the operators
    with a formula that have run. Returns None if CUDA does the same as here.
    """
    for call in spec(operator).formula_calls:
        if made is None or (call.made_by is not None and made.operator not in call.made_by):
            continue
        if count - made.count > call.within or not (not call.forward or call.forward & seen):
            continue
        if not call.nodes or _node() in call.nodes:
            kept = call.does == IN_PLACE_ONCE and torch.is_grad_enabled()
            return ANEW if kept else call.does
    return None


def _node() -> str:
    node = torch._C._current_autograd_node()
    return "" if node is None else node.name()


# Operators that formulas call in the CPU's accumulation dtype (at::toAccumulateType): renorm_backward.
mark("linalg_vector_norm sum.dim_IntList", accumulates=True)
_DOUBLED = {(torch.float64, torch.float32), (torch.complex128, torch.complex64)}


def as_on_cuda(operator, args, kwargs) -> dict:
    """Returns the keyword arguments of a formula's call as on CUDA, where float32 sums don't use float64."""
    if spec(operator).accumulates and (kwargs.get("dtype"), args[0].dtype) in _DOUBLED:
        return {**kwargs, "dtype": args[0].dtype}
    return kwargs
