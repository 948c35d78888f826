"""Formulas of autograd that go another way on meta tensors, or under a dispatch mode, than they do on CUDA.

The formulas are C++ (torch/csrc/autograd/FunctionsManual.cpp). Those that ask `areAnyTensorSubclassLike` go on in a
tensor that they have just made, and here they make another; those that ask for the device take a meta tensor for the
CPU's. What shows here is the operator that such a formula calls; CALLS says of each which operator that is, what made
its first operand, and what CUDA does. Formulas that are operators of their own (gather_backward) are in
`composites/gradients.py`.

Where other formulas make the same call and mean it, the name of the formula's node decides. A node that Python has
seen lets go of what it leads to in another order, so nodes are asked for only once an operator has run whose formula it
is.
"""

from typing import NamedTuple

import torch

_aten = torch.ops.aten
_ADD, _SUB, _MUL = _aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor
IN_PLACE, IN_PLACE_ONCE, ANEW = "in place", "in place, unless its own gradient may be asked for", "anew"
TWICE = "twice"  # among operators: any that ran in a backward whose graph is kept, to go through it again


class Made(NamedTuple):
    """What made a tensor: an operator, the `count`-th that ran."""

    operator: object
    count: int


class Call(NamedTuple):
    """One call that a formula makes.

    `operator`: what it calls. `made_by`: the operators by which the first operand was made; None for any. `within`: at
    most so many operators ago. `forward`: the operators that have the formula, and `nodes`: what their nodes are
    called; both are empty where no other formula makes such a call. `does`: what CUDA does: IN_PLACE; IN_PLACE_ONCE
    if not in a backward with create_graph=True; or ANEW where it looks as if the engine added one gradient to another,
    which it does in place (engine.py).
    """

    operator: object
    made_by: frozenset | None
    nodes: frozenset = frozenset()
    forward: frozenset = frozenset()
    within: int = 1000
    does: str = IN_PLACE


def _of(names: str) -> frozenset:
    """OpOverloads of aten by name: "mul.Tensor exp" has exp's default overload."""
    pairs = (name.partition(".") for name in names.split())
    return frozenset(getattr(getattr(_aten, packet), overload or "default") for packet, _, overload in pairs)


def _sum(nodes: str, forward: str, made_by: str, within: int) -> Call:
    """A sum that a formula makes of what it has made itself."""
    return Call(_ADD, _of(made_by), frozenset(nodes.split()), _of(forward), within, ANEW)


def _second(node: str, made_by: str, within: int = 1000) -> Call:
    """The same, of the gradient of a gradient: no backward has such a node unless an earlier one kept its graph."""
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
    """A formula that takes another way on CUDA than here, and not one that is known: it asks for values, which a
    simulated tensor has not, or holds something in C++ that Python does not see.

    `nodes`, `forward`: as of a Call. `name`: what is told, and `why`.
    """

    nodes: frozenset
    forward: frozenset
    name: str
    why: str


# By an operator that the formula calls here.
GUESSES = {
    # masked_fill_backward: grad.masked_select(mask).sum()
    _aten.where.self: Guess(
        frozenset({"MaskedFillBackward1"}),
        _of("masked_fill.Tensor masked_fill_.Tensor"),
        "the gradient of masked_fill's value",
        "the elements that its mask selects (how many they are only their values tell)",
    ),
    # _unsafe_masked_index_backward: the kernel writes into the list of indices that the node's C++ holds to its end
    _aten.new_zeros.default: Guess(
        frozenset({"UnsafeMaskedIndexBackward0"}),
        _of("_unsafe_masked_index"),
        "the gradient of _unsafe_masked_index",
        "the order in which its indices are freed",
    ),
}


def guessed(operator, seen: set) -> Guess | None:
    """What has to be told where a formula calls `operator`. `seen`: those of FORWARD that have run."""
    guess = GUESSES.get(operator)
    return guess if guess is not None and guess.forward & seen and _node() in guess.nodes else None


_calls: dict = {}
for _call in CALLS:
    _calls.setdefault(_call.operator, []).append(_call)
FORWARD = frozenset().union(*(one.forward for one in (*CALLS, *GUESSES.values())))


def concerns(operator) -> bool:
    """Whether formulas or the engine call this operator in another way on meta tensors than on CUDA."""
    return operator in _calls


def made_by_formula(operator, made: Made | None, count: int, seen: set) -> str | None:
    """What CUDA does where a formula calls `operator`, the `count`-th operator to run, on a tensor that nothing else
    holds, as of a Call; None if nothing else than here.

    `made`: what made that tensor. `seen`: those of FORWARD that have run.
    """
    for call in _calls.get(operator, ()):
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


# What formulas ask for in the dtype that sums have on the CPU (at::toAccumulateType): renorm_backward.
_ACCUMULATING = _of("linalg_vector_norm sum.dim_IntList")
_DOUBLED = {(torch.float64, torch.float32), (torch.complex128, torch.complex64)}


def as_on_cuda(operator, args, kwargs) -> dict:
    """The named arguments of a call that a formula makes: sums of single precision are not double on CUDA."""
    if operator in _ACCUMULATING and (kwargs.get("dtype"), args[0].dtype) in _DOUBLED:
        return {**kwargs, "dtype": args[0].dtype}
    return kwargs
