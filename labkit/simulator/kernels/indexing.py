"""Reading and writing by index: embeddings."""

from math import ceil

import torch

from labkit.simulator.kernels import cub
from labkit.simulator.kernels.launch import Launch, made_of_others, rule

ROWS_PER_PARTIAL = 10  # EmbeddingBackwardKernel.cu, NROWS_PER_THREAD
MAX_THREADS = 1024  # EmbeddingBackwardKernel.cu, MAX_BLOCK_SIZE
ATOMIC_BLOCKS = 4  # of threads on a multiprocessor: EmbeddingBackwardKernel.cu, MAX_ATOMIC_ACCUM_BLOCKS_PER_SM
FEW_INDICES = 3072  # up to which Embedding.cu, embedding_dense_backward_cuda, does not sort

# aten/src/ATen/native/Embedding.cpp: index_select of the flattened indices, which are copied if they are no flat view.
made_of_others("embedding.default")


@rule("embedding_dense_backward.default")
def embedding_backward(launch: Launch) -> None:
    """aten/src/ATen/native/cuda/Embedding.cu, embedding_dense_backward_cuda: many indices are sorted first."""
    grad, indices, weights, padding, by_frequency = launch.args
    launch.contiguous(indices, grad)
    n, index = indices.numel(), indices.element_size()
    if n <= FEW_INDICES and not by_frequency:
        return
    launch.scratch(n * index)  # the indices sorted
    launch.scratch(n * index)  # where each was
    ramp = launch.scratch(n * index)
    bits = None
    if launch.machine.torch_version >= (2, 13):  # before, all bits of an index are sorted by
        bits = max(weights if padding >= 0 else weights - 1 - padding, 1).bit_length()
    launch.release(launch.scratch(cub.radix_sort(n, index, index, launch.machine.spec, bits)))
    launch.release(ramp)
    if by_frequency:
        launch.scratch(n * index)
        for _ in range(2):  # counts upwards, then their maximum downwards
            launch.release(launch.scratch(cub.scan_by_key(n, index, launch.machine.spec)))
    sum_by_index(launch, grad, n, index, weights, atomically=True)


def sum_by_index(launch: Launch, grad, n: int, index: int, weights: int, atomically: bool) -> None:
    """EmbeddingBackwardKernel.cu, embedding_backward_cuda_kernel: the rows of `grad` with one index are summed in
    parts of 10 rows, and the parts into the gradient of the weights, the output; atomically where parts are few.

    `n` sorted indices of `index` bytes into `weights` rows.
    """
    (output,) = launch.outputs
    spec = launch.machine.spec
    launch.give(output)
    launch.scratch(n * index)  # where the segments of equal indices begin
    launch.scratch(8)  # how many
    keys = launch.scratch(n * index)
    unique = launch.scratch(cub.unique_by_key(n, index, spec))
    launch.release(unique, keys)
    segments = min(n, weights)
    launch.scratch(segments * index)  # parts of each segment
    launch.scratch(segments * index)  # where they begin
    launch.release(launch.scratch(cub.scan(segments, index, spec)))
    launch.scratch(8)  # how many parts
    parts = n // ROWS_PER_PARTIAL + segments
    launch.scratch(parts * index)
    row = output.shape[-1]
    accumulator = torch.float32 if grad.dtype.itemsize < 4 else grad.dtype
    threads = -(-row // 32) * 32
    blocks = ceil(segments * threads / min(threads, MAX_THREADS)) if row else 0
    few = blocks < spec.multiprocessors * ATOMIC_BLOCKS and parts > 4 * blocks
    if atomically and few and not torch.are_deterministic_algorithms_enabled():
        launch.scratch(parts * index)  # the segment of each part
        if accumulator != grad.dtype:
            launch.scratch_like(output, accumulator)
    else:
        launch.scratch(parts * row * accumulator.itemsize)
