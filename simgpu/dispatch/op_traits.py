"""Finds out once per operator what the dispatch mode needs to know of it."""

from collections.abc import Callable

import torch

from simgpu.checks import devices, dtypes, missing_cuda_kernels, overlaps
from simgpu.op_info.op_spec import mark, spec
from simgpu.ops import has_decomposition, rule_for

HIGHER_ORDER, QUESTION, COLLECTIVE = "higher order", "question", "collective"
VIEW, COMPOSITE, KERNEL = "view", "composite", "kernel"

mark("copy_ _foreach_copy_ _to_copy set_.source_Storage set_.source_Tensor", crosses_devices=True)
mark("index.Tensor index_put index_put_ _index_put_impl_", index_on_host=True)
mark("_pack_padded_sequence", values_on_host=True)
mark("_foreach_addcdiv.Tensor _foreach_addcdiv_.Tensor", values_on_host=True)
mark("_foreach_addcmul.Tensor _foreach_addcmul_.Tensor", values_on_host=True)
mark("masked_fill.Tensor masked_fill_.Tensor", scalar_on_host=True)


def is_view(operator) -> bool:
    """Returns whether all results of the operator are always views of its arguments (reshape and contiguous may
    copy).
    """
    returns = operator._schema.returns
    if not returns or any(r.alias_info is None or r.alias_info.is_write for r in returns):
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")


def takes_tensors(operator) -> bool:
    """Returns whether an operator has tensor arguments."""
    return any("Tensor" in str(argument.type) for argument in operator._schema.arguments)


def is_question(operator) -> bool:
    """Returns whether it only queries a tensor subclass (prim.device), which is not an operator of the dispatcher."""
    return operator.namespace == "prim"


def is_collective(operator) -> bool:
    """Returns whether it is an operator of torch.distributed, which communicates with other ranks."""
    return operator.namespace in ("c10d", "_c10d_functional", "_dtensor")


def is_composite(operator) -> bool:
    """Returns whether it is made of other operators and has no kernel; seen as a whole only in inference mode."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "Meta")
    return operator._can_decompose() and not has_kernel and not is_view(operator)


def _kind(operator) -> str:
    if isinstance(operator, torch._ops.HigherOrderOperator):
        return HIGHER_ORDER
    if is_question(operator):
        return QUESTION
    if is_collective(operator):
        return COLLECTIVE
    if is_view(operator):
        return VIEW
    return COMPOSITE if is_composite(operator) else KERNEL


class OpTraits:
    """Holds what is the same for every call of an operator.

    `kind` is one of the constants above, and `spec` the operator's record. `may_be_decomposed` says whether CUDA
    decomposes it, at least for some calls, `creates_by_decomposition` whether that creates a tensor from none (a
    window), and `made_in_python` whether a program's own Python code runs for it. `rule` is the function for its
    allocations apart from the outputs, or None. `wants_one_device` says that even a host tensor without dims is
    refused. `dtypes` is CUDA's check of dtypes and `overlaps` its check of the written memory; each may be None.
    `absent` is the name of the kernel that CUDA lacks, for which it refuses the operator, or None. `stages` are those
    that a call goes through (stages.py).
    """

    __slots__ = (
        *("operator", "spec", "kind", "stages", "absent", "dtypes", "overlaps", "wants_one_device"),
        *("rule", "may_be_decomposed", "creates_by_decomposition", "made_in_python"),
    )

    def __init__(self, operator):
        self.operator, self.spec, self.kind = operator, spec(operator), _kind(operator)
        self.stages: tuple[Callable, ...] = ()
        self.absent = missing_cuda_kernels.missing(operator) if self.kind is KERNEL else None
        self.dtypes = dtypes.checks_of(operator) if self.kind is KERNEL else None
        self.overlaps = overlaps.check_of(operator) if self.kind is KERNEL else None
        self.wants_one_device = devices.wants_one_device(operator)
        self.rule = rule_for(operator)
        self.may_be_decomposed = self.kind is KERNEL and has_decomposition(operator)
        self.creates_by_decomposition = self.spec.decompose is not None and not takes_tensors(operator)
        self.made_in_python = self.may_be_decomposed and operator.namespace not in ("aten", "fsdp")
