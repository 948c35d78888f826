"""Operators on lists of tensors (torch._foreach_*), as optimizers and clip_grad_norm_ call them.

multi_tensor_apply passes the addresses with the launch and takes no memory; of all of them only the reductions do. On
lists that the fused kernels refuse, each tensor is given to the ordinary operator instead (the slow path).
"""

import math
from collections.abc import Callable

import torch

from simgpu import machine as machines
from simgpu.errors import NotModelledError
from simgpu.kernels.launch import Launch, made_of_others, rule
from simgpu.kernels.refused_calls import WITH_BOOL
from simgpu.tensors.layout import is_dense

CHUNK = 65536  # elements of a tensor that one block of threads reduces (MultiTensorApply.cuh, kChunkSize)
OFFSET = 8  # bytes of the place of a tensor's partial results


def _alike(tensors) -> bool:
    """ForeachUtils.h, can_use_fast_route of one list: one dtype, no gaps in memory."""
    dtype = tensors[0].dtype
    return all(t.dtype == dtype and is_dense(t) for t in tensors)


def norms_one_by_one(tensors, ord=2, dtype=None) -> bool:
    """ForeachReduceOp.cu, foreach_tensor_norm_cuda: what its kernel does not compute; from torch 2.12 on it counts what
    is not 0, too."""
    computed = (0, 1, 2, math.inf) if machines.on().torch_version >= (2, 12) else (1, 2, math.inf)
    return not (tensors[0].dtype.is_floating_point and float(ord) in computed and _alike(tensors))


def powers_one_by_one(tensors, ord=2, dtype=None) -> bool:
    """The same for foreach_tensor_powsum_cuda."""
    return float(ord) not in (1, 2) or norms_one_by_one(tensors, ord)


made_of_others("_foreach_norm.Scalar", when=norms_one_by_one)
made_of_others("_foreach_powsum.Scalar", when=powers_one_by_one)
made_of_others("_foreach_max.default", when=lambda tensors: not _alike(tensors))


def _partial_results(launch: Launch, element: int) -> tuple[list, Callable]:
    """ForeachReduceOp.cu: what comes before the results, and a function that allocates the partial results, `element`
    bytes each.

    From torch 2.15 on there is one for each chunk, and their offsets, one of 8 bytes for each tensor that is not empty
    and one more, are copied to the GPU. Before, each tensor has as many as the largest one needs.
    """
    tensors = launch["self"]
    chunks = [math.ceil(tensor.numel() / CHUNK) for tensor in tensors]
    if launch.machine.torch_version < (2, 15):
        return [], lambda: launch.scratch(len(tensors) * max(chunks) * element)
    offsets = launch.scratch((1 + sum(count > 0 for count in chunks)) * OFFSET)
    return [offsets], lambda: launch.scratch(sum(chunks) * element)


@rule("_foreach_norm.Scalar", "_foreach_powsum.Scalar")
def norms(launch: Launch) -> None:
    """ForeachReduceOp.cu, foreach_tensor_norm_cuda_internal: partial results, a result for each tensor that is not
    empty and an unused one for each that is, then theirs."""
    tensors = launch["self"]
    element = launch.outputs[0].element_size()
    offsets, partial_results = _partial_results(launch, max(element, torch.float32.itemsize))
    partial = partial_results()
    results = {True: [], False: []}
    for tensor, output in zip(tensors, launch.outputs, strict=True):
        results[tensor.numel() == 0].append(output)
    launch.give(*results[False])
    unused = [launch.scratch(element) for _ in results[True]]
    launch.give(*results[True])
    launch.release(*unused, partial, *offsets)


@rule("_foreach_max.default")
def maxima(launch: Launch) -> None:
    """ForeachReduceOp.cu, foreach_tensor_max_cuda: the results, then partial ones."""
    element = launch.outputs[0].element_size()
    offsets, partial_results = _partial_results(launch, element)
    launch.give(*launch.outputs)
    launch.release(partial_results(), *offsets)


def _lie_alike(lists) -> bool:
    """ForeachUtils.h, check_fast_path_restrictions of several lists: no gaps, and each tensor like those beside it."""
    for first, *others in zip(*lists, strict=True):
        if not is_dense(first):
            return False
        for other in others:
            strides = zip(first.shape, first.stride(), other.stride(), strict=True)
            if other.shape != first.shape or any(a != b for size, a, b in strides if size != 1):
                return False
    return True


@rule("_fused_sgd_")
def fused_sgd(launch: Launch) -> None:
    """FusedSgdKernel.cu takes no memory. RuntimeError for a gradient with other strides than its parameter."""
    params, grads, momenta = launch["self", "grads", "momentum_buffer_list"]
    lists, names = ((params, grads), "{params, grads}")
    if momenta:
        lists, names = ((params, grads, momenta), " {params, grads, momentum_buffer_list}")
    if not _lie_alike(lists):
        raise RuntimeError(
            f"Expected at::native::check_fast_path_restrictions({names}) to be true, but got false.  "
            "(Could this error message be improved?  If so, please report an enhancement request to PyTorch.)"
        )


@rule("_fused_adagrad_")
def fused_adagrad(launch: Launch) -> None:
    """FusedAdagradKernel.cu: takes no memory, and wants the same of its lists."""
    if not _lie_alike(launch["self", "grads", "state_sums"]):
        raise RuntimeError("params, grads, and state_sums must have same dtype, device, and layout")


@rule("_fused_adam_", "_fused_adamw_")
def fused_adam(launch: Launch) -> None:
    """FusedAdamKernel.cu, FusedAdamWKernel.cu: take no memory, and want the same of their lists."""
    lists = [states for states in launch["self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"] if states]
    if not _lie_alike(lists):
        names = "and exp_avg_sqs" if len(lists) == 4 else "exp_avg_sqs, and max_exp_avg_sqs"
        raise RuntimeError(f"params, grads, exp_avgs, {names} must have same dtype, device, and layout")


if hasattr(torch.ops.aten, "_foreach_mm"):  # torch 2.11 has none

    @rule("_foreach_mm.default")
    def products(launch: Launch) -> None:
        """torch/_native/ops: stacks and grouped products, by shapes and GPU."""
        raise NotModelledError("the simulated GPU does not model aten._foreach_mm: multiply the matrices one by one")


def _numbers(scalars, count: int) -> list:
    """ForeachUtils.h, convert_tensor_to_scalar_list: numbers that lie on the host, one for each tensor."""
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
    """ForeachPointwiseOp.cu: numbers in a tensor are read, and become a list."""

    def run(tensors, first, second, scalars):
        return operator(tensors, first, second, _numbers(scalars, len(tensors)))

    return run


for _name in ("addcmul", "addcmul_", "addcdiv", "addcdiv_"):
    _packet = getattr(torch.ops.aten, f"_foreach_{_name}")
    made_of_others(f"_foreach_{_name}.Tensor")(_with_numbers(_packet.ScalarList))


@rule("_foreach_sub", "_foreach_sub_")
def differences(launch: Launch) -> None:
    """ForeachBinaryOpScalar.cu, ForeachBinaryOpScalarList.cu: RuntimeError for a number that is a bool, whatever the
    tensors are."""
    numbers = launch.get("scalar", launch.get("scalars"))
    if isinstance(numbers, bool) or (isinstance(numbers, (list, tuple)) and any(type(one) is bool for one in numbers)):
        raise RuntimeError(WITH_BOOL)
