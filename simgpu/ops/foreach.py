"""Rules for operators on lists of tensors (torch._foreach_*), as optimizers and clip_grad_norm_ call them.

multi_tensor_apply passes the addresses with the launch and allocates nothing, so only the reductions allocate memory.
If the fused kernels refuse a list, each tensor is passed to the ordinary operator (the slow path).
"""

import math
from collections.abc import Callable

import torch

from simgpu.device import machine as machines
from simgpu.errors import NotModelledError
from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.ops.refused_calls import WITH_BOOL
from simgpu.storage.layout import is_dense

CHUNK = 65536  # elements that one thread block reduces (MultiTensorApply.cuh, kChunkSize)
OFFSET = 8  # bytes of the offset of a tensor's partial results


def _alike(tensors) -> bool:
    """Returns whether a list can use the fast route: one dtype, no gaps in memory (ForeachUtils.h,
    can_use_fast_route).
    """
    dtype = tensors[0].dtype
    return all(t.dtype == dtype and is_dense(t) for t in tensors)


def norms_one_by_one(tensors, ord=2, dtype=None) -> bool:
    """Returns whether foreach_tensor_norm_cuda's kernel cannot compute the norm; from torch 2.12 on it includes ord=0.

    (ForeachReduceOp.cu)
    """
    computed = (0, 1, 2, math.inf) if machines.on().torch_version >= (2, 12) else (1, 2, math.inf)
    return not (tensors[0].dtype.is_floating_point and float(ord) in computed and _alike(tensors))


def powers_one_by_one(tensors, ord=2, dtype=None) -> bool:
    """Returns the same for foreach_tensor_powsum_cuda."""
    return float(ord) not in (1, 2) or norms_one_by_one(tensors, ord)


decomposition("_foreach_norm.Scalar", when=norms_one_by_one)
decomposition("_foreach_powsum.Scalar", when=powers_one_by_one)
decomposition("_foreach_max.default", when=lambda tensors: not _alike(tensors))


def _partial_results(call: OpCall, element: int) -> tuple[list, Callable]:
    """Returns what precedes the results, and a function that allocates the partial results, `element` bytes each.

    Source: ForeachReduceOp.cu. From torch 2.15 on there is one partial result per chunk. Their offsets, 8 bytes per
    non-empty tensor plus one, are copied to the GPU. Before that, each tensor has as many as the largest one needs.
    """
    tensors = call["self"]
    chunks = [math.ceil(tensor.numel() / CHUNK) for tensor in tensors]
    if call.machine.torch_version < (2, 15):
        return [], lambda: call.scratch(len(tensors) * max(chunks) * element)
    offsets = call.scratch((1 + sum(count > 0 for count in chunks)) * OFFSET)
    return [offsets], lambda: call.scratch(sum(chunks) * element)


@rule("_foreach_norm.Scalar", "_foreach_powsum.Scalar")
def norms(call: OpCall) -> None:
    """Rule of foreach_tensor_norm_cuda_internal: partial results, then a result per non-empty tensor.

    For each empty tensor an unused result follows, and then theirs (ForeachReduceOp.cu).
    """
    tensors = call["self"]
    element = call.outputs[0].element_size()
    offsets, partial_results = _partial_results(call, max(element, torch.float32.itemsize))
    partial = partial_results()
    results = {True: [], False: []}
    for tensor, output in zip(tensors, call.outputs, strict=True):
        results[tensor.numel() == 0].append(output)
    call.allocate_outputs(*results[False])
    unused = [call.scratch(element) for _ in results[True]]
    call.allocate_outputs(*results[True])
    call.release(*unused, partial, *offsets)


@rule("_foreach_max.default")
def maxima(call: OpCall) -> None:
    """Rule of foreach_tensor_max_cuda: the results, then partial ones (ForeachReduceOp.cu)."""
    element = call.outputs[0].element_size()
    offsets, partial_results = _partial_results(call, element)
    call.allocate_outputs(*call.outputs)
    call.release(partial_results(), *offsets)


def _lie_alike(lists) -> bool:
    """Returns whether several lists have no gaps and corresponding tensors have the same layout.

    (ForeachUtils.h, check_fast_path_restrictions)
    """
    for first, *others in zip(*lists, strict=True):
        if not is_dense(first):
            return False
        for other in others:
            strides = zip(first.shape, first.stride(), other.stride(), strict=True)
            if other.shape != first.shape or any(a != b for size, a, b in strides if size != 1):
                return False
    return True


@rule("_fused_sgd_")
def fused_sgd(call: OpCall) -> None:
    """Rule of FusedSgdKernel.cu, which allocates nothing. Raises RuntimeError for a gradient with other strides."""
    params, grads, momenta = call["self", "grads", "momentum_buffer_list"]
    lists, names = ((params, grads), "{params, grads}")
    if momenta:
        lists, names = ((params, grads, momenta), " {params, grads, momentum_buffer_list}")
    if not _lie_alike(lists):
        raise RuntimeError(
            f"Expected at::native::check_fast_path_restrictions({names}) to be true, but got false.  "
            "(Could this error message be improved?  If so, please report an enhancement request to PyTorch.)"
        )


@rule("_fused_adagrad_")
def fused_adagrad(call: OpCall) -> None:
    """Rule of FusedAdagradKernel.cu, which allocates nothing and has the same requirement for its lists."""
    if not _lie_alike(call["self", "grads", "state_sums"]):
        raise RuntimeError("params, grads, and state_sums must have same dtype, device, and layout")


@rule("_fused_adam_", "_fused_adamw_")
def fused_adam(call: OpCall) -> None:
    """Rule of FusedAdamKernel.cu and FusedAdamWKernel.cu, which allocate nothing and have the same requirement."""
    lists = [states for states in call["self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"] if states]
    if not _lie_alike(lists):
        names = "and exp_avg_sqs" if len(lists) == 4 else "exp_avg_sqs, and max_exp_avg_sqs"
        raise RuntimeError(f"params, grads, exp_avgs, {names} must have same dtype, device, and layout")


if hasattr(torch.ops.aten, "_foreach_mm"):  # torch 2.11 has none

    @rule("_foreach_mm.default")
    def products(call: OpCall) -> None:
        """Raises NotModelledError: torch/_native/ops chooses stacked or grouped matmuls by shapes and GPU."""
        raise NotModelledError("the simulated GPU does not model aten._foreach_mm: multiply the matrices one by one")


def _numbers(scalars, count: int) -> list:
    """Returns the numbers of a tensor on the host, one per tensor (ForeachUtils.h, convert_tensor_to_scalar_list)."""
    wrong = None
    if not (isinstance(scalars, torch.Tensor) and not scalars.is_meta):
        wrong = f"Expected scalars to be on CPU, got {machines.cuda()} instead."
    elif not scalars.is_contiguous():
        wrong = "Expected scalars to be contiguous."
    elif scalars.dim() != 1:
        wrong = f"Expected packed scalar Tensor to be of dimension 1. Got {scalars.dim()} instead."
    elif len(scalars) != count:
        wrong = f"Expected length of scalars to match input of length {count} but got {len(scalars)} instead."
    if wrong:
        raise RuntimeError(wrong)
    return scalars.tolist()


def _with_numbers(operator):
    """Wraps an operator so that numbers in a tensor are read and passed as a list (ForeachPointwiseOp.cu)."""

    def run(tensors, first, second, scalars):
        return operator(tensors, first, second, _numbers(scalars, len(tensors)))

    return run


for _name in ("addcmul", "addcmul_", "addcdiv", "addcdiv_"):
    _packet = getattr(torch.ops.aten, f"_foreach_{_name}")
    decomposition(f"_foreach_{_name}.Tensor")(_with_numbers(_packet.ScalarList))


@rule("_foreach_sub", "_foreach_sub_")
def differences(call: OpCall) -> None:
    """Rule of ForeachBinaryOpScalar.cu and ForeachBinaryOpScalarList.cu.

    Raises RuntimeError for a number that is a bool, whatever the tensors are.
    """
    numbers = call.get("scalar", call.get("scalars"))
    if isinstance(numbers, bool) or (isinstance(numbers, (list, tuple)) and any(type(one) is bool for one in numbers)):
        raise RuntimeError(WITH_BOOL)
