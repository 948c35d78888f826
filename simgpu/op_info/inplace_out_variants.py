"""Finds overloads of an operator that run the same CUDA code and write into an existing tensor: out= and in place."""

import torch

from simgpu.op_info import composite_explicit


def _inputs(operator) -> list[tuple[str, str]]:
    """Returns names and types of an operator's arguments, without the out= ones."""
    arguments = operator._schema.arguments
    return [(one.name, str(one.type)) for one in arguments if not one.is_out]


def variants(operator):
    """Yields the overloads with a CUDA kernel, without those that compute separately on any device and copy."""
    name = operator._opname
    for packet in (getattr(torch.ops.aten, name), getattr(torch.ops.aten, f"{name}_", None)):
        for overload in packet.overloads() if packet is not None else ():
            other = getattr(packet, overload)
            if not torch._C._dispatch_has_kernel(other.name()):  # only for TorchScript
                continue
            if (
                other is not operator
                and _inputs(other) == _inputs(operator)
                and not composite_explicit.on_gpu_too(other)
            ):
                yield other


def resized(out, result):
    """Copies `result` into `out`, which takes its shape (native/Resize.h, resize_output)."""
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)
