"""Rules for losses: the tensor of losses, its reduction, and the copies that their kernels read."""

import torch

from simgpu.checks.scalar_types import name, not_implemented, read_as
from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.ops.reduction_scratch import reduce_all

NONE = 0  # at::Reduction::None

# C++ that calls other operators (aten/src/ATen/native/Loss.cpp, ReduceOps.cpp).
decomposition("binary_cross_entropy_with_logits.default", "logsumexp.default", "logsumexp.out")
decomposition("soft_margin_loss.default", "soft_margin_loss.out")
decomposition("soft_margin_loss_backward.default", "soft_margin_loss_backward.grad_input")


@rule("nll_loss_forward.default")
def nll_loss(call: OpCall) -> None:
    """Rule of nll_loss_forward_out_cuda_template (aten/src/ATen/native/cuda/Loss.cu)."""
    tensor, target, weight = call["self", "target", "weight"]
    call.allocate_outputs(*call.outputs)
    call.contiguous(tensor, target, weight)
    if tensor.numel():
        if not tensor.is_floating_point():
            not_implemented(f"nll_loss_forward_{_way(call, tensor)}", tensor.dtype)
        read_as(tensor.dtype, weight)
        if call.machine.torch_version < (2, 12) and target.dtype not in (torch.uint8, torch.int64):
            not_implemented(f"nll_loss_forward_{_way(call, tensor)}_index", target.dtype)
        read_as(torch.int64, *_wide(target))


def _way(call: OpCall, scores: torch.Tensor) -> str:
    """Returns the kernel: for one row, for rows with a loss each, or for rows whose losses are reduced."""
    if scores.dim() == 1:
        return "reduce_cuda_kernel_1d"
    return "no_reduce_cuda_kernel" if call["reduction"] == NONE else "reduce_cuda_kernel_2d"


def _wide(target) -> list:
    """Returns the classes in a list unless they are bytes, which nll_loss reads directly."""
    return [] if target.dtype == torch.uint8 else [target]


@rule("nll_loss_backward.default")
def nll_loss_backward(call: OpCall) -> None:
    """Rule of nll_loss_backward_out_cuda_template (aten/src/ATen/native/cuda/Loss.cu)."""
    grad, tensor, target, weight = call["grad_output", "self", "target", "weight"]
    call.allocate_outputs(*call.outputs)
    call.contiguous(target, tensor, grad, weight)


@rule("nll_loss2d_forward.default")
def nll_loss2d(call: OpCall) -> None:
    """Rule of NLLLoss2d.cu: the sum of the weights first; copies only if the losses are reduced.

    (aten/src/ATen/native/cuda/NLLLoss2d.cu)
    """
    tensor, target, weight, reduction = call["self", "target", "weight", "reduction"]
    output, total_weight = call.outputs
    call.allocate_outputs(total_weight, output)
    if reduction == NONE:
        call.contiguous(weight)
    else:
        call.contiguous(tensor, target, weight)
    if tensor.numel():
        if not tensor.is_floating_point():
            way = "no_reduce_kernel" if reduction == NONE else "kernel"
            not_implemented(f"nll_loss2d_forward_{way}", tensor.dtype)
        read_as(torch.int64, target)
        read_as(tensor.dtype, weight)


@rule("nll_loss2d_backward.default")
def nll_loss2d_backward(call: OpCall) -> None:
    """Rule of nll_loss2d_backward_out_cuda_template, whose gradient has the scores' layout and must be contiguous.

    (aten/src/ATen/native/cuda/NLLLoss2d.cu)
    """
    tensor, target, weight, reduction = call["self", "target", "weight", "reduction"]
    call.allocate_outputs(*call.outputs)
    if not (tensor.is_contiguous() or torch.empty_like(tensor).is_contiguous()):
        raise RuntimeError("grad_input must be contiguous")
    if reduction == NONE:
        call.contiguous(weight)
    else:
        call.contiguous(target, weight)


def _count(call: OpCall) -> int:
    """Returns the number of losses: the elements of input and target, broadcast."""
    return torch.broadcast_shapes(call["self"].shape, call["target"].shape).numel()


@rule("mse_loss.default", "smooth_l1_loss.default", only=True)
def full_size(call: OpCall) -> None:
    """Rule of mse_loss_out: the result is allocated as large as the losses, and keeps that storage.

    It is then resized to the one element that they are reduced to (aten/src/ATen/native/BinaryOps.cpp).
    """
    (output,) = call.outputs
    if call["reduction"] == NONE:
        return
    nbytes = _count(call) * output.element_size()
    output.untyped_storage().resize_(max(nbytes, output.element_size()))  # zero losses have a mean, too
    call.allocate_outputs(output)
    call.scratch(nbytes)
    reduce_all(call, _count(call), output.dtype)


@rule("huber_loss.default")
def huber_loss(call: OpCall) -> None:
    """Rule of huber_loss: the losses, then the result (aten/src/ATen/native/BinaryOps.cpp)."""
    (output,) = call.outputs
    if call["reduction"] == NONE:
        return
    call.scratch(_count(call) * output.element_size())
    call.allocate_outputs(output)
    reduce_all(call, _count(call), output.dtype)


@rule("binary_cross_entropy.default", only=True)
def binary_cross_entropy(call: OpCall) -> None:
    """Rule of binary_cross_entropy: the losses, whose storage the result keeps, and a scalar copied into it.

    (aten/src/ATen/native/cuda/Loss.cu)
    """
    (output,) = call.outputs
    given, target = call["self", "target"]
    if call["reduction"] == NONE:
        call.allocate_outputs(output)
        _check_same(given, target)
        return
    count = _count(call)
    output.untyped_storage().resize_(max(count, 1) * output.element_size())
    if count == 0:
        _check_same(given, target)
        reduced = call.scratch(output.element_size())  # before the result, which had no room for a scalar
        call.allocate_outputs(output)
        call.release(reduced)
        return
    call.allocate_outputs(output)
    _check_same(given, target)
    call.scratch(output.element_size())
    reduce_all(call, count, output.dtype)


def _check_same(given, target) -> None:
    """Raises RuntimeError if operands that must have one dtype don't (aten/src/ATen/TensorIterator.cpp,
    compute_types).
    """
    if target.dtype != given.dtype:
        raise RuntimeError(f"Found dtype {name(target.dtype)} but expected {name(given.dtype)}")


@rule("log_sigmoid_forward.default")
def log_sigmoid(call: OpCall) -> None:
    """Rule of log_sigmoid_forward_out_cuda, which returns an empty buffer (aten/src/ATen/native/Activation.cpp)."""
    call.outputs[1].untyped_storage().resize_(0)


@rule("multi_margin_loss.default")
def multi_margin_loss(call: OpCall) -> None:
    """Rule of MultiMarginLoss.cu: the result, copies of the inputs, and the losses of the rows.

    (aten/src/ATen/native/cuda/MultiMarginLoss.cu)
    """
    tensor, target = call["self", "target"]
    call.allocate_outputs(*call.outputs)
    if tensor.numel() == 0:
        return
    call.contiguous(tensor, target, call["weight"])
    if tensor.dim() == 2 and call["reduction"] != NONE:
        rows = tensor.shape[0]
        losses = call.scratch(rows * tensor.element_size())
        read_as(torch.int64, target)
        reduce_all(call, rows, tensor.dtype)
        call.release(losses)


@rule("multi_margin_loss_backward.default")
def multi_margin_loss_backward(call: OpCall) -> None:
    """Rule of the backward in MultiMarginLoss.cu."""
    grad, tensor, target = call["grad_output", "self", "target"]
    call.allocate_outputs(*call.outputs)
    if tensor.numel():
        call.contiguous(tensor, grad, target, call["weight"])


@rule("multilabel_margin_loss_forward.default")
def multilabel_margin_loss(call: OpCall) -> None:
    """Rule of MultiLabelMarginCriterion.cu: copies of the inputs, which classes are targets, the losses of the rows.

    (aten/src/ATen/native/cuda/MultiLabelMarginCriterion.cu)
    """
    tensor, target, reduction = call["self", "target", "reduction"]
    output, is_target = call.outputs
    call.contiguous(tensor, target)
    call.allocate_outputs(is_target)
    if tensor.dim() < 2 or reduction == NONE:
        call.allocate_outputs(output)
        return
    losses = call.scratch(tensor.shape[0] * tensor.element_size())
    call.allocate_outputs(output)
    reduce_all(call, tensor.shape[0], tensor.dtype)
    call.release(losses)


@rule("multilabel_margin_loss_backward.default")
def multilabel_margin_loss_backward(call: OpCall) -> None:
    """Rule of the backward in MultiLabelMarginCriterion.cu."""
    call.allocate_outputs(*call.outputs)
    call.contiguous(*call["self", "target", "is_target", "grad_output"])
