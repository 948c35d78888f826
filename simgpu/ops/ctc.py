"""ctc_loss on CUDA: its decomposition, its shapes, and what its kernels allocate.

Sources: aten/src/ATen/native/LossCTC.cpp, cuda/LossCTC.cu and cudnn/LossCTC.cpp. The order of the allocations is
that of PyTorch's CUDA code without a GPU, torch 2.13.0.
"""

import torch

from simgpu.device.machine import remedy
from simgpu.errors import NotModelledError
from simgpu.ops.dispatcher import cuda_composite, meta
from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.storage import storage_map, values

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
