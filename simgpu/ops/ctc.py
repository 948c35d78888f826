"""Rules for the kernels of ctc_loss, forward and backward (aten/src/ATen/native/cuda/LossCTC.cu)."""

import torch

from simgpu.ops.op_call import OpCall, decomposition, rule

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
