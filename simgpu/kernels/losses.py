"""Rules for losses: the tensor of losses, its reduction, and the copies that their kernels read."""

import torch

from simgpu.kernels.launch import Launch, made_of_others, rule
from simgpu.kernels.reduction_scratch import reduce_all
from simgpu.kernels.scalar_types import name, not_implemented, read_as

NONE = 0  # at::Reduction::None

# C++ that calls other operators (aten/src/ATen/native/Loss.cpp, ReduceOps.cpp).
made_of_others("binary_cross_entropy_with_logits.default", "logsumexp.default", "logsumexp.out")
made_of_others("soft_margin_loss.default", "soft_margin_loss.out")
made_of_others("soft_margin_loss_backward.default", "soft_margin_loss_backward.grad_input")


@rule("nll_loss_forward.default")
def nll_loss(launch: Launch) -> None:
    """Rule of nll_loss_forward_out_cuda_template (aten/src/ATen/native/cuda/Loss.cu)."""
    tensor, target, weight = launch["self", "target", "weight"]
    launch.give(*launch.outputs)
    launch.contiguous(tensor, target, weight)
    if tensor.numel():
        if not tensor.is_floating_point():
            not_implemented(f"nll_loss_forward_{_way(launch, tensor)}", tensor.dtype)
        read_as(tensor.dtype, weight)
        if launch.machine.torch_version < (2, 12) and target.dtype not in (torch.uint8, torch.int64):
            not_implemented(f"nll_loss_forward_{_way(launch, tensor)}_index", target.dtype)
        read_as(torch.int64, *_wide(target))


def _way(launch: Launch, scores: torch.Tensor) -> str:
    """Returns the kernel: for one row, for rows with a loss each, or for rows whose losses are reduced."""
    if scores.dim() == 1:
        return "reduce_cuda_kernel_1d"
    return "no_reduce_cuda_kernel" if launch["reduction"] == NONE else "reduce_cuda_kernel_2d"


def _wide(target) -> list:
    """Returns the classes in a list unless they are bytes, which nll_loss reads directly."""
    return [] if target.dtype == torch.uint8 else [target]


@rule("nll_loss_backward.default")
def nll_loss_backward(launch: Launch) -> None:
    """Rule of nll_loss_backward_out_cuda_template (aten/src/ATen/native/cuda/Loss.cu)."""
    grad, tensor, target, weight = launch["grad_output", "self", "target", "weight"]
    launch.give(*launch.outputs)
    launch.contiguous(target, tensor, grad, weight)


@rule("nll_loss2d_forward.default")
def nll_loss2d(launch: Launch) -> None:
    """Rule of NLLLoss2d.cu: the sum of the weights first; copies only if the losses are reduced.

    (aten/src/ATen/native/cuda/NLLLoss2d.cu)
    """
    tensor, target, weight, reduction = launch["self", "target", "weight", "reduction"]
    output, total_weight = launch.outputs
    launch.give(total_weight, output)
    if reduction == NONE:
        launch.contiguous(weight)
    else:
        launch.contiguous(tensor, target, weight)
    if tensor.numel():
        if not tensor.is_floating_point():
            way = "no_reduce_kernel" if reduction == NONE else "kernel"
            not_implemented(f"nll_loss2d_forward_{way}", tensor.dtype)
        read_as(torch.int64, target)
        read_as(tensor.dtype, weight)


@rule("nll_loss2d_backward.default")
def nll_loss2d_backward(launch: Launch) -> None:
    """Rule of nll_loss2d_backward_out_cuda_template, whose gradient has the scores' layout and must be contiguous.

    (aten/src/ATen/native/cuda/NLLLoss2d.cu)
    """
    tensor, target, weight, reduction = launch["self", "target", "weight", "reduction"]
    launch.give(*launch.outputs)
    if not (tensor.is_contiguous() or torch.empty_like(tensor).is_contiguous()):
        raise RuntimeError("grad_input must be contiguous")
    if reduction == NONE:
        launch.contiguous(weight)
    else:
        launch.contiguous(target, weight)


def _count(launch: Launch) -> int:
    """Returns the number of losses: the elements of input and target, broadcast."""
    return torch.broadcast_shapes(launch["self"].shape, launch["target"].shape).numel()


@rule("mse_loss.default", "smooth_l1_loss.default", only=True)
def full_size(launch: Launch) -> None:
    """Rule of mse_loss_out: the result is allocated as large as the losses, and keeps that storage.

    It is then resized to the one element that they are reduced to (aten/src/ATen/native/BinaryOps.cpp).
    """
    (output,) = launch.outputs
    if launch["reduction"] == NONE:
        return
    nbytes = _count(launch) * output.element_size()
    output.untyped_storage().resize_(max(nbytes, output.element_size()))  # zero losses have a mean, too
    launch.give(output)
    launch.scratch(nbytes)
    reduce_all(launch, _count(launch), output.dtype)


@rule("huber_loss.default")
def huber_loss(launch: Launch) -> None:
    """Rule of huber_loss: the losses, then the result (aten/src/ATen/native/BinaryOps.cpp)."""
    (output,) = launch.outputs
    if launch["reduction"] == NONE:
        return
    launch.scratch(_count(launch) * output.element_size())
    launch.give(output)
    reduce_all(launch, _count(launch), output.dtype)


@rule("binary_cross_entropy.default", only=True)
def binary_cross_entropy(launch: Launch) -> None:
    """Rule of binary_cross_entropy: the losses, whose storage the result keeps, and a scalar copied into it.

    (aten/src/ATen/native/cuda/Loss.cu)
    """
    (output,) = launch.outputs
    given, target = launch["self", "target"]
    if launch["reduction"] == NONE:
        launch.give(output)
        _check_same(given, target)
        return
    count = _count(launch)
    output.untyped_storage().resize_(max(count, 1) * output.element_size())
    if count == 0:
        _check_same(given, target)
        reduced = launch.scratch(output.element_size())  # before the result, which had no room for a scalar
        launch.give(output)
        launch.release(reduced)
        return
    launch.give(output)
    _check_same(given, target)
    launch.scratch(output.element_size())
    reduce_all(launch, count, output.dtype)


def _check_same(given, target) -> None:
    """Raises RuntimeError if operands that must have one dtype don't (aten/src/ATen/TensorIterator.cpp,
    compute_types).
    """
    if target.dtype != given.dtype:
        raise RuntimeError(f"Found dtype {name(target.dtype)} but expected {name(given.dtype)}")


@rule("log_sigmoid_forward.default")
def log_sigmoid(launch: Launch) -> None:
    """Rule of log_sigmoid_forward_out_cuda, which returns an empty buffer (aten/src/ATen/native/Activation.cpp)."""
    launch.outputs[1].untyped_storage().resize_(0)


@rule("multi_margin_loss.default")
def multi_margin_loss(launch: Launch) -> None:
    """Rule of MultiMarginLoss.cu: the result, copies of the inputs, and the losses of the rows.

    (aten/src/ATen/native/cuda/MultiMarginLoss.cu)
    """
    tensor, target = launch["self", "target"]
    launch.give(*launch.outputs)
    if tensor.numel() == 0:
        return
    launch.contiguous(tensor, target, launch["weight"])
    if tensor.dim() == 2 and launch["reduction"] != NONE:
        rows = tensor.shape[0]
        losses = launch.scratch(rows * tensor.element_size())
        read_as(torch.int64, target)
        reduce_all(launch, rows, tensor.dtype)
        launch.release(losses)


@rule("multi_margin_loss_backward.default")
def multi_margin_loss_backward(launch: Launch) -> None:
    """Rule of the backward in MultiMarginLoss.cu."""
    grad, tensor, target = launch["grad_output", "self", "target"]
    launch.give(*launch.outputs)
    if tensor.numel():
        launch.contiguous(tensor, grad, target, launch["weight"])


@rule("multilabel_margin_loss_forward.default")
def multilabel_margin_loss(launch: Launch) -> None:
    """Rule of MultiLabelMarginCriterion.cu: copies of the inputs, which classes are targets, the losses of the rows.

    (aten/src/ATen/native/cuda/MultiLabelMarginCriterion.cu)
    """
    tensor, target, reduction = launch["self", "target", "reduction"]
    output, is_target = launch.outputs
    launch.contiguous(tensor, target)
    launch.give(is_target)
    if tensor.dim() < 2 or reduction == NONE:
        launch.give(output)
        return
    losses = launch.scratch(tensor.shape[0] * tensor.element_size())
    launch.give(output)
    reduce_all(launch, tensor.shape[0], tensor.dtype)
    launch.release(losses)


@rule("multilabel_margin_loss_backward.default")
def multilabel_margin_loss_backward(launch: Launch) -> None:
    """Rule of the backward in MultiLabelMarginCriterion.cu."""
    launch.give(*launch.outputs)
    launch.contiguous(*launch["self", "target", "is_target", "grad_output"])
