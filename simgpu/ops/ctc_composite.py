"""CUDA's decomposition of ctc_loss on the simulated GPU (aten/src/ATen/native/LossCTC.cpp).

The order of the allocations is that of the oracle, torch 2.13.0.
"""

import torch

from simgpu.device.machine import remedy
from simgpu.errors import NotModelledError
from simgpu.ops.dispatcher import cuda_composite, meta
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
