"""Operators without a CUDA kernel, for which PyTorch runs device-independent C++ code that calls other operators.

A build for the CPU has no CUDA kernels to look up. But an operator with a device-independent kernel
(CompositeExplicitAutograd) has a CUDA kernel exactly if it has a CPU kernel. The oracle confirms this for all of aten
except operators on lists of tensors, whose device-independent kernel is the slow one.
"""

from functools import cache

import torch

from simgpu.op_info import op_spec

KEYS = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
# These make their result and allocate nothing else, so they need not be decomposed.
_MAKE = "empty_like zeros_like ones_like full_like rand_like randn_like randint_like clone stack embedding repeat abs"
_MAKE_NEW = (
    "new_empty new_empty_strided new_full new_ones new_zeros _to_copy _reshape_copy fill zero _pin_memory resize"
)
_WRITE = "copy_ abs_ resize_as_ set_ as_strided_ squeeze_ t_ transpose_ unsqueeze_ detach_"
_SEE = "lift lift_fresh lift_fresh_copy _unsafe_view is_same_size is_pinned"
_PLAIN = frozenset(f"{_MAKE} {_MAKE_NEW} {_WRITE} {_SEE}".split())
# These have only CUDA's own kernel in addition to the device-independent one.
_ON_GPU = frozenset({"_grouped_mm", "_chunk_cat", "split_with_sizes_copy", "convolution_backward"})


@cache
def kernel_of(operator):
    """Returns the key of an operator's device-independent kernel, or None; for FSDP2's operators, the CPU's if any."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if operator.namespace == "fsdp" and has_kernel(operator.name(), "CPU"):
        return torch._C.DispatchKey.CPU
    for key in KEYS:
        if has_kernel(operator.name(), key):
            return getattr(torch._C.DispatchKey, key)
    return None


@cache
def on_gpu_too(operator) -> bool:
    """Returns whether CUDA runs an operator's device-independent kernel, whose calls therefore have to be seen.

    FSDP2's own operators are functions that are the same for CPU and CUDA
    (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). Since torch 2.15 chunk_cat_mixed_dtype also has a CUDA
    kernel, which copies gradients of bfloat16 and float32 without a cast of each; the casts are counted here.
    """
    if operator.namespace == "fsdp":
        return True
    name = operator._opname
    if operator.namespace != "aten" or name in _PLAIN or name in _ON_GPU or name.startswith(("_foreach_", "_fused_")):
        return False
    if kernel_of(operator) is None or op_spec.spec(operator).shapes is not None:
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CPU")
