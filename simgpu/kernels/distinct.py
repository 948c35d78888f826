"""Rules for distinct values (torch.unique). Their number depends on values, so these have to be known."""

import torch

from simgpu.kernels import cub
from simgpu.kernels.launch import Launch, rule
from simgpu.kernels.sorting import sort_along, sort_one_row

INT = 4  # bytes
INDEX = 8


@rule("_unique.default", "_unique2.default", only=True)
def unique(launch: Launch) -> None:
    """Rule of unique_cuda_template: the elements sorted, and with `return_inverse` also where each was.

    (aten/src/ATen/native/cuda/Unique.cu, UniqueCub.cu)
    """
    tensor, inverse = launch["self", "return_inverse"]
    n, element, spec = tensor.numel(), tensor.element_size(), launch.machine.spec
    if n == 0:
        return
    launch.contiguous(tensor)
    launch.scratch(n * element)
    if inverse:
        ramp, _ = launch.scratch(n * INDEX), launch.scratch(n * INDEX)
        launch.release(launch.scratch(cub.radix_sort(n, element, INDEX, spec)), ramp)
    else:
        if element == 1 and spec.compute_capability >= (9, 0):
            launch.machine.left_out.add(
                "torch.unique of bytes", "how this GPU's sort of keys of 1 byte is tiled", lower_bound=False
            )
        launch.release(launch.scratch(cub.radix_sort(n, element, 0, spec)))
    _of_sorted(launch, n, INDEX if inverse else 0, launch.get("return_counts", False))


@rule("unique_consecutive.default", only=True)
def unique_consecutive(launch: Launch) -> None:
    """Rule of unique_consecutive: compute_unique of adjacent elements (aten/src/ATen/native/cuda/UniqueCub.cu)."""
    tensor, inverse, counts, dim = launch["self", "return_inverse", "return_counts", "dim"]
    if tensor.numel() == 0 or dim is not None:
        return
    launch.contiguous(tensor)
    _of_sorted(launch, tensor.numel(), INT if inverse else 0, counts)


@rule("embedding_renorm_.default")
def embedding_renorm(launch: Launch) -> None:
    """Rule of embedding_renorm_cuda_ (`max_norm` of an embedding), which scales each row that is looked up once.

    So the indices are sorted, and their distinct values taken (aten/src/ATen/native/cuda/Embedding.cu). Order and sizes
    were read from oracle traces.
    """
    indices = launch["indices"]
    n, element = indices.numel(), indices.element_size()
    if n == 0:
        return
    of_a_row = launch.machine.torch_version < (2, 13)  # each row separately, in its layout; since then all together
    copies = [] if of_a_row else [*launch.contiguous(indices), launch.scratch(n * element)]
    ordered, places = launch.scratch(n * element), launch.scratch(n * INDEX)
    if of_a_row:
        sort_along(launch, indices, indices.dim() - 1, indices)
    else:
        sort_one_row(launch, n, element)
    launch.release(places)
    distinct, count = launch.scratch(n * element), launch.scratch(INDEX)
    launch.release(launch.scratch(cub.unique(n, element, launch.machine.spec)))
    launch.release(count, distinct, ordered, *reversed(copies))


def _of_sorted(launch: Launch, n: int, inverse: int, counts: bool) -> None:
    """Allocates as compute_unique: results as long as the input, which are truncated afterwards.

    `inverse` is the bytes of the number that says where an element went, or 0 without it.
    """
    distinct, where, *rest = launch.outputs
    spec = launch.machine.spec
    if inverse:
        launch.give(where)
        places = launch.scratch(n * inverse)
        launch.release(launch.scratch(cub.inclusive_sum(n, spec)), places)
    _as_long_as(n, distinct)
    launch.give(distinct)
    count = launch.scratch(INDEX)
    if counts:
        _as_long_as(n, *rest)
        launch.give(*rest)
        launch.release(launch.scratch(cub.run_lengths(n)))
    else:
        launch.release(launch.scratch(cub.unique(n, distinct.element_size(), spec)))
    launch.release(count)


def _as_long_as(n: int, *outputs: torch.Tensor) -> None:
    for output in outputs:
        output.untyped_storage().resize_(n * output.element_size())
