"""Provides CUDA's errors for tensors on different devices in one operator, in the words of each family of operators."""

import torch

from simgpu.device import machine as machines
from simgpu.op_info.per_op_cache import per_op_cache
from simgpu.storage import storage_map

_aten = torch.ops.aten

# Operators without PyTorch's device check before the kernel (device_check: NoCheck in native_functions.yaml), because
# TensorIterator checks; pointwise operators are known by their tag.
_FOUND_BY_ITERATOR = {
    "mse_loss",
    "smooth_l1_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "index_put",
    "index_put_",
    "dist",
}
# Operators with that check although they are pointwise, or although they otherwise accept a host tensor without dims,
# which it refuses too. These are names of operators, in place and with out=, or of one overload.
_ONE_DEVICE = """
    addmm bucketize.Tensor clamp.Tensor clamp_max.Tensor clamp_min.Tensor complex gcd huber_loss igamma igammac
    isin.Tensor_Tensor lcm logaddexp logaddexp2 masked_scatter nextafter normal.Tensor_Tensor polar put scatter.src
    searchsorted.Tensor
"""
_NAMES_OF_THESE = frozenset(_ONE_DEVICE.split())
# Operators that call another: the wrapper of that one's kernel, and its names of the arguments.
_CALLS = {
    "complex": ("out_complex_out", {}),
    "polar": ("out_polar_out", {}),
    "embedding": ("_index_select", {"weight": "self", "indices": "index"}),
    "mv": ("addmv_", {"self": "mat"}),
    "stack": ("cat", {}),
}


@per_op_cache
def wants_one_device(operator) -> bool:
    """Returns whether CUDA refuses even a host tensor without dims as an argument of an OpOverload."""
    if getattr(operator, "namespace", None) != "aten":
        return False
    name = operator._opname.removesuffix("_")
    return name in _NAMES_OF_THESE or f"{name}.{operator._overloadname}" in _NAMES_OF_THESE


def device_of(tensor) -> str:
    """Returns the device's name as CUDA reports it."""
    return str(storage_map.device_of(tensor)) if storage_map.on_gpu(tensor) else "cpu"


def type_of(tensor) -> str:
    """Returns the tensor's legacy type: "torch.cuda.FloatTensor"."""
    name = tensor.type().removeprefix("torch.").removeprefix("meta.")
    return f"torch.cuda.{name}" if device_of(tensor) != "cpu" else f"torch.{name}"


def error(operator, args, kwargs) -> RuntimeError:
    """Returns the error for a call with tensors on the GPU and on the host."""
    name = operator._schema.name.removeprefix("aten::")
    values = list(_named_tensors(operator, args, kwargs))
    if name == "convolution":
        return _convolution(dict(values))
    if name in ("masked_fill", "masked_fill_"):
        mask, tensor = (device_of(dict(values)[key]) for key in ("mask", "self"))
        if mask != tensor:
            return RuntimeError(
                f"expected self and mask to be on the same device, but got mask on {mask} and self on {tensor}"
            )
    if name.startswith("_scaled_dot_product"):
        query, key, value = (device_of(dict(values)[key]) for key in ("query", "key", "value"))
        return RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query} key.device: {key} and value.device: {value} instead."
        )
    if name == "index":
        return RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor "
            f"({device_of(dict(values)['self'])})"
        )
    by_iterator = torch.Tag.pointwise in operator.tags and not wants_one_device(operator)
    if by_iterator or name in _FOUND_BY_ITERATOR or name.startswith("_foreach_"):
        return RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {machines.cuda()} and cpu!"
        )
    if name == "mv":
        values.reverse()  # the result is created like the vector, before the check
    common = device_of(values[0][1])
    key, other = next((key, device_of(tensor)) for key, tensor in values if device_of(tensor) != common)
    called, renamed = _CALLS.get(name, (None, {}))
    return RuntimeError(
        f"Expected all tensors to be on the same device, but got {renamed.get(key, key)} is on {other}, different from "
        f"other tensors on {common} (when checking argument in method wrapper_CUDA_{_wrapper(operator, called)})"
    )


def _named_tensors(operator, args, kwargs):
    for position, argument in enumerate(operator._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(tensor, torch.Tensor):
                yield argument.name, tensor


def _wrapper(operator, called: str | None) -> str:
    """Returns the name that PyTorch's code generator gives the wrapper of an operator's CUDA kernel."""
    if called is not None:
        return called
    name, overload = operator._schema.name.removeprefix("aten::"), operator._overloadname.replace("default", "")
    if _structured(operator):
        return f"{name}_{overload}" if overload else name
    packet = operator.overloadpacket
    if overload.endswith("out") and any(_structured(getattr(packet, one)) for one in packet.overloads()):
        return f"{name}_{overload}_out"
    return f"{overload}_{name}"


def _structured(operator) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeExplicitAutogradNonFunctional")


def _convolution(tensors: dict) -> RuntimeError:
    """Returns the error of check_input_same_type_as_parameters (aten/src/ATen/native/Convolution.cpp).

    On the CPU it mentions mkldnn's kernels.
    """
    given = tensors["input"]
    key = next(key for key in ("weight", "bias") if key in tensors and device_of(tensors[key]) != device_of(given))
    message = f"Input type ({type_of(given)}) and {key} type ({type_of(tensors[key])}) should be the same"
    if device_of(given) == "cpu":
        message += " or input should be a MKLDNN tensor and weight is a dense tensor"
    return RuntimeError(message)
