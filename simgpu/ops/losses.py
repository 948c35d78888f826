"""Rules for losses."""

import torch

from simgpu.checks.scalar_types import name, not_implemented, read_as
from simgpu.device.machine import remedy
from simgpu.errors import NotModelledError
from simgpu.ops.dispatcher import cuda_composite, meta
from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.ops.reductions import reduce_all
from simgpu.storage import storage_map, values

# Rules for losses: the tensor of losses, its reduction, and the copies that their kernels read.

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


# ctc_loss on CUDA: its decomposition, its shapes, and what its kernels allocate.
# Sources: aten/src/ATen/native/LossCTC.cpp, cuda/LossCTC.cu and cudnn/LossCTC.cpp. The order of the allocations is
# that of PyTorch's CUDA code without a GPU, torch 2.13.0.

_aten = torch.ops.aten
MEAN, SUM = 1, 2
LONGEST_OF_CUDNN = 256


def _read(lengths) -> list[int]:
    """Returns lengths as numbers, which CUDA reads on the host.

    Raises NoValueError if they are on the GPU and their values are not known.
    """
    if not isinstance(lengths, torch.Tensor):
        return list(lengths)
    unknown = f"ctc_loss() reads its lengths, which are simulated and have no values: give them on the CPU. {remedy()}"
    return values.deciding(lengths, "ctc_loss", unknown).flatten().tolist()


def _cudnn_takes(log_probs, targets, inputs, ends, blank) -> bool:
    """Returns whether cuDNN computes this loss (aten/src/ATen/native/cudnn/LossCTC.cpp, _use_cudnn_ctc_loss)."""
    if not torch._C._get_cudnn_enabled() or blank != 0 or log_probs.dtype != torch.float32:
        return False
    if targets.dim() != 1 or targets.dtype != torch.int32:
        return False
    fits = all(end < LONGEST_OF_CUDNN and end <= length for length, end in zip(inputs, ends, strict=False))
    return fits and all(length == log_probs.shape[0] for length in inputs)


def _on_gpu(targets):
    """Returns the targets on the GPU as int64."""
    if storage_map.on_gpu(targets):
        return targets.to(torch.int64)
    return torch.empty(targets.shape, dtype=torch.int64, device="meta").copy_(targets)


def _reduced(losses, ends, reduction: int):
    if reduction == SUM:
        return losses.sum()
    if reduction != MEAN:
        return losses
    lengths = torch.tensor(ends, dtype=losses.dtype, device="cpu")
    lengths = torch.empty(lengths.shape, dtype=losses.dtype, device="meta").copy_(lengths).clamp_min(1)
    each = losses / lengths
    result = each.mean()
    del each, lengths
    return result


@cuda_composite("ctc_loss.Tensor", "ctc_loss.IntList")
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction=MEAN, zero_infinity=False):
    """Returns the losses of a batch [steps, batch, classes], or of one sequence [steps, classes].

    Raises NotModelledError for a call that cuDNN would compute.
    """
    inputs, ends = _read(input_lengths), _read(target_lengths)
    if _cudnn_takes(log_probs, targets, inputs, ends, blank):
        raise NotModelledError(
            "the simulated GPU does not model cuDNN's ctc_loss, which takes int32 targets in one dim: give int64 "
            "targets, or switch cuDNN off (torch.backends.cudnn.flags(enabled=False))"
        )
    single = log_probs.dim() == 2
    if single:
        log_probs = log_probs.unsqueeze(1)
    targets = _on_gpu(targets)
    losses = _aten._ctc_loss(log_probs, targets, inputs, ends, blank, zero_infinity)[0]
    del targets
    if zero_infinity:
        zero = torch.zeros((), dtype=losses.dtype, device="meta")
        infinite = losses == float("inf")
        losses = torch.where(infinite, zero, losses)
        del infinite, zero
    if single and reduction not in (MEAN, SUM):
        losses = losses.squeeze(0)
    return _reduced(losses, ends, reduction)


@meta("_ctc_loss_backward")
def ctc_loss_backward(grad, log_probs, *rest, **named):
    """Returns the contiguous gradient (aten/src/ATen/native/cuda/LossCTC.cu)."""
    return torch.empty(log_probs.shape, dtype=log_probs.dtype, device="meta")


INT64 = torch.int64.itemsize


def _lengths(call: OpCall, batch: int) -> list:
    """Allocates the lengths of inputs and targets, and the targets' offsets, which the host copies to the GPU."""
    return [call.scratch(batch * INT64) for _ in range(3)]


@rule("_ctc_loss.default")
def forward(call: OpCall) -> None:
    """Rule of ctc_loss_gpu_template."""
    losses, log_alpha = call.outputs
    lengths = _lengths(call, losses.shape[0])
    call.allocate_outputs(log_alpha, losses)
    call.release(*lengths)


def _large(grad, log_probs, *rest, **named) -> bool:
    """Returns whether blanks are summed by separate operators, and the others by a kernel.

    (ctc_loss_backward_gpu_template, is_large)
    """
    steps, batch, classes = log_probs.shape
    return 2 * steps + 24 * batch // 10 + 2 * classes // 10 > 450


@decomposition("_ctc_loss_backward.default", when=_large)
def large_backward(grad, log_probs, targets, inputs, ends, losses, log_alpha, blank, zero_infinity=False):
    """Decomposes ctc_loss_backward_gpu_template for many steps, sequences and classes."""
    batch = log_probs.shape[1]
    lengths = [torch.empty(batch, dtype=torch.int64, device=grad.device) for _ in range(3)]
    log_beta = torch.empty_like(log_alpha)
    result = torch.empty(log_probs.shape, dtype=log_probs.dtype, device=grad.device)
    torch.exp(log_probs, out=result)
    of_blanks = result.narrow(2, blank, 1)
    products = log_alpha[..., ::2] + log_beta[..., ::2]
    summed = torch.logsumexp(products, 2, True).permute(1, 0, 2)
    summed.add_(losses.view(1, batch, 1)).sub_(log_probs.narrow(2, blank, 1)).exp_()
    of_blanks -= summed
    del summed, products, of_blanks
    result *= grad.view(1, batch, 1)
    if zero_infinity:
        zero = torch.zeros((), dtype=result.dtype, device=grad.device)
        infinite = losses.view(1, batch, 1) == float("inf")
        cleared = torch.where(infinite, zero, result)
        del infinite, zero
        result = cleared
        del cleared
    del log_beta, lengths
    return result


@rule("_ctc_loss_backward.default")
def backward(call: OpCall) -> None:
    """Rule of ctc_loss_backward_gpu_template: a second table as large as the one that forward saved."""
    lengths = _lengths(call, call["log_probs"].shape[1])
    log_beta = call.scratch_like(call["log_alpha"])
    call.allocate_outputs(*call.outputs)
    call.release(log_beta, *lengths)
