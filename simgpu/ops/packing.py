"""Rules for FSDP2's copies into and out of its flat buffers, each one kernel
(aten/src/ATen/native/cuda/TensorShape.cu).

The kernel reads the parts' positions from an int64 tensor that is first copied to the GPU (pack_vecs).
"""

import math

import torch

from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.storage.layout import is_dense

BLOCK = 128  # threads, BLOCK_SIZE
TILE = BLOCK * 16  # bytes per thread block: BYTES_PER_THREAD each
NUMBER = 8  # bytes of an int64
CHUNK_CAT = torch.ops.aten._chunk_cat.default


def _part_by_part(self, split_sizes, dim=0, *, out) -> bool:
    """Returns whether split_with_sizes_copy_out_cuda's kernel does not support a call."""
    return not (is_dense(self) and all(is_dense(one) and one.dtype == self.dtype for one in out))


decomposition("split_with_sizes_copy.out", when=_part_by_part)


@rule("split_with_sizes_copy.out", only=True)
def split(call: OpCall) -> None:
    """Rule of split_with_sizes_copy_out_cuda: `out` grows first if it is too small, then the kernel's arguments.

    split_with_sizes_copy_out_cuda_contiguous_no_cast stores two addresses, a size and a first block per part, the end
    of the last, and per block the part that it is for.
    """
    call.allocate_outputs(*call["out"])
    tensor, sizes, dim = call["self", "split_sizes", "dim"]
    dim %= tensor.dim()
    spec = call.machine.spec
    parts = [size * tensor.stride(dim) * tensor.element_size() for size in sizes]
    chunks = math.prod(tensor.shape[:dim])
    most = int(spec.multiprocessors * spec.max_threads_per_multiprocessor / BLOCK * 2)
    factor = -(-sum(-(-part // TILE) for part in parts) * chunks // most)
    in_a_block = min(math.ceil(math.sqrt(factor)), chunks)
    if not in_a_block:
        return
    blocks = sum(-(-part // (TILE * -(-factor // in_a_block))) for part in parts)
    call.scratch(NUMBER * (4 * len(parts) + 1 + blocks))


def _padded_one_by_one(tensors, dim, num_chunks, *, out=None) -> bool:
    """Returns whether _chunk_cat_out_cuda's kernel does not support a call."""
    first = tensors[0].dtype
    casts = (
        out is not None and out.dtype != first and (str(first), str(out.dtype)) != ("torch.bfloat16", "torch.float32")
    )
    return casts or not all(one.is_contiguous() for one in tensors)


decomposition("_chunk_cat.default", "_chunk_cat.out", when=_padded_one_by_one)


@rule("_chunk_cat.default", "_chunk_cat.out", only=True)
def chunk_cat(call: OpCall) -> None:
    """Rule of _chunk_cat: the output, unless it is `out`, which grows last, and the kernel's arguments.

    get_chunk_cat_metadata stores per tensor an address, a size, a part's size and blocks, the start of its part and its
    first block; then the ends of the last; and per thread block its tensor.
    """
    tensors, dim, chunks = call["tensors", "dim", "num_chunks"]
    dim %= tensors[0].dim()
    element = call.outputs[0].element_size()
    parts = [-(-one.shape[dim] // chunks) * math.prod(one.shape[dim + 1 :]) * element for one in tensors]
    blocks = sum(-(-part // TILE) for part in parts)
    if call.operator is CHUNK_CAT:
        call.allocate_outputs(*call.outputs)
    call.scratch(NUMBER * (6 * len(tensors) + 2 + blocks))
    call.allocate_outputs(*call.outputs)
