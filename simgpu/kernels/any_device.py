"""Operators of which CUDA has no kernel: PyTorch runs C++ that is for any device, and which calls other operators.

A build for the CPU knows no kernels of CUDA's. But operators with a kernel for any device (CompositeExplicitAutograd)
have one of CUDA's where they have one of the CPU's, which the oracle confirms for all of aten but those on lists of
tensors, whose kernel for any device is the slow one.
"""

from functools import cache

import torch

from simgpu.tensors import registry

KEYS = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
# They make their result and take nothing beside, so they need not be taken apart.
_MAKE = "empty_like zeros_like ones_like full_like rand_like randn_like randint_like clone stack embedding repeat abs"
_MAKE_NEW = (
    "new_empty new_empty_strided new_full new_ones new_zeros _to_copy _reshape_copy fill zero _pin_memory resize"
)
_WRITE = "copy_ abs_ resize_as_ set_ as_strided_ squeeze_ t_ transpose_ unsqueeze_ detach_"
_SEE = "lift lift_fresh lift_fresh_copy _unsafe_view is_same_size is_pinned"
_PLAIN = frozenset(f"{_MAKE} {_MAKE_NEW} {_WRITE} {_SEE}".split())
# CUDA's own kernel is the only one that they have beside the one for any device.
_ON_GPU = frozenset({"_grouped_mm", "_chunk_cat", "split_with_sizes_copy", "convolution_backward"})


@cache
def kernel_of(operator):
    """The key of an operator's kernel for any device, or None if it has none; of FSDP2's, any device's will do."""
    if operator.namespace == "fsdp":
        return torch._C.DispatchKey.CPU
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for key in KEYS:
        if has_kernel(operator.name(), key):
            return getattr(torch._C.DispatchKey, key)
    return None


@cache
def on_gpu_too(operator) -> bool:
    """Whether CUDA runs an operator's kernel for any device, and what that one calls is to be seen.

    FSDP2's own operators are functions in Python, the same ones for the CPU and for CUDA
    (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)."""
    if operator.namespace == "fsdp":
        return True
    name = operator._opname
    if operator.namespace != "aten" or name in _PLAIN or name in _ON_GPU or name.startswith(("_foreach_", "_fused_")):
        return False
    if kernel_of(operator) is None or registry.has_shapes(operator):
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CPU")
