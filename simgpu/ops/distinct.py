"""Rules for distinct values (torch.unique). Their number depends on values, so these have to be known."""

import torch

from simgpu.ops import cub
from simgpu.ops.op_call import OpCall, rule
from simgpu.ops.sorting import sort_along, sort_one_row

INT = 4  # bytes
INDEX = 8


@rule("_unique.default", "_unique2.default", only=True)
def unique(call: OpCall) -> None:
    """Rule of unique_cuda_template: the elements sorted, and with `return_inverse` also where each was.

    (aten/src/ATen/native/cuda/Unique.cu, UniqueCub.cu)
    """
    tensor, inverse = call["self", "return_inverse"]
    n, element, spec = tensor.numel(), tensor.element_size(), call.machine.spec
    if n == 0:
        return
    call.contiguous(tensor)
    call.scratch(n * element)
    if inverse:
        ramp, _ = call.scratch(n * INDEX), call.scratch(n * INDEX)
        call.release(call.scratch(cub.radix_sort(n, element, INDEX, spec)), ramp)
    else:
        if element == 1 and spec.compute_capability >= (9, 0):
            call.machine.unmodeled.add(
                "torch.unique of bytes", "how this GPU's sort of keys of 1 byte is tiled", lower_bound=False
            )
        call.release(call.scratch(cub.radix_sort(n, element, 0, spec)))
    _of_sorted(call, n, INDEX if inverse else 0, call.get("return_counts", False))


@rule("unique_consecutive.default", only=True)
def unique_consecutive(call: OpCall) -> None:
    """Rule of unique_consecutive: compute_unique of adjacent elements (aten/src/ATen/native/cuda/UniqueCub.cu)."""
    tensor, inverse, counts, dim = call["self", "return_inverse", "return_counts", "dim"]
    if tensor.numel() == 0 or dim is not None:
        return
    call.contiguous(tensor)
    _of_sorted(call, tensor.numel(), INT if inverse else 0, counts)


@rule("embedding_renorm_.default")
def embedding_renorm(call: OpCall) -> None:
    """Rule of embedding_renorm_cuda_ (`max_norm` of an embedding), which scales each row that is looked up once.

    So the indices are sorted, and their distinct values taken (aten/src/ATen/native/cuda/Embedding.cu). Order and sizes
    were read from oracle traces.
    """
    indices = call["indices"]
    n, element = indices.numel(), indices.element_size()
    if n == 0:
        return
    of_a_row = call.machine.torch_version < (2, 13)  # each row separately, in its layout; since then all together
    copies = [] if of_a_row else [*call.contiguous(indices), call.scratch(n * element)]
    ordered, places = call.scratch(n * element), call.scratch(n * INDEX)
    if of_a_row:
        sort_along(call, indices, indices.dim() - 1, indices)
    else:
        sort_one_row(call, n, element)
    call.release(places)
    distinct, count = call.scratch(n * element), call.scratch(INDEX)
    call.release(call.scratch(cub.unique(n, element, call.machine.spec)))
    call.release(count, distinct, ordered, *reversed(copies))


def _of_sorted(call: OpCall, n: int, inverse: int, counts: bool) -> None:
    """Allocates as compute_unique: results as long as the input, which are truncated afterwards.

    `inverse` is the bytes of the number that says where an element went, or 0 without it.
    """
    distinct, where, *rest = call.outputs
    spec = call.machine.spec
    if inverse:
        call.allocate_outputs(where)
        places = call.scratch(n * inverse)
        call.release(call.scratch(cub.inclusive_sum(n, spec)), places)
    _as_long_as(n, distinct)
    call.allocate_outputs(distinct)
    count = call.scratch(INDEX)
    if counts:
        _as_long_as(n, *rest)
        call.allocate_outputs(*rest)
        call.release(call.scratch(cub.run_lengths(n)))
    else:
        call.release(call.scratch(cub.unique(n, distinct.element_size(), spec)))
    call.release(count)


def _as_long_as(n: int, *outputs: torch.Tensor) -> None:
    for output in outputs:
        output.untyped_storage().resize_(n * output.element_size())
