"""Rules for reducing segments of a tensor of different lengths (aten/src/ATen/native/cuda/SegmentReduce.cu)."""

import torch

from simgpu.ops.op_call import decomposition


@decomposition("segment_reduce.default")
def segment_reduce(data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None):
    """Decomposes segment_reduce_kernel: the host checks the lengths, unless the call says that they are valid."""
    axis %= data.dim()
    data = data.contiguous()
    if lengths is None and offsets is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    if offsets is not None:
        segments = offsets.shape[-1] - 1
    else:
        segments = lengths.shape[-1]  # pyright: ignore[reportOptionalMemberAccess]
        if not unsafe:
            _check(data, lengths, axis)
    shape = (*data.shape[:axis], segments, *data.shape[axis + 1 :])
    result = torch.empty(shape, dtype=data.dtype, device=data.device)
    ends = _ends(lengths, offsets, axis)
    if data.dim() == 1:
        torch.empty(1, dtype=torch.uint8, device=data.device)  # CUB's segmented reduction
    del ends
    return result


def _check(data, lengths, axis) -> None:
    if lengths.min().item() < 0:
        raise RuntimeError("lengths contains negative value!")
    total = lengths.sum([-1])
    right = total == data.shape[axis]
    all_right = right.all().item()
    del right, total
    if not all_right:
        raise RuntimeError(
            "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when "
            "!unsafe."
        )


def _ends(lengths, offsets, axis):
    """Returns what the kernel needs in addition: lengths from offsets, or offsets from lengths."""
    if offsets is not None:
        return offsets.contiguous().diff()
    lengths = lengths.contiguous()
    begin = torch.zeros((*lengths.shape[:axis], 1), dtype=lengths.dtype, device=lengths.device)
    ends = torch.cat([begin, lengths], axis)
    del begin
    return ends.cumsum_(axis)


@decomposition("_segment_reduce_backward.default")
def segment_reduce_backward(grad, output, data, reduce, *, lengths=None, offsets=None, axis=0, initial=None):
    """Decomposes _segment_reduce_lengths_offsets_backward_cuda_kernel."""
    grad, output, data = grad.contiguous(), output.contiguous(), data.contiguous()
    result = torch.zeros(data.shape, dtype=grad.dtype, device=grad.device)
    ends = _ends(lengths, offsets, axis % data.dim())
    del ends, data, output, grad
    return result
