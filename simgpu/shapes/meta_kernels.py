"""Computes shapes and strides of an operator's results with PyTorch's meta kernels.

PyTorch has most of them twice: in C++, shared with CUDA's operators, and in Python (torch/_meta_registrations.py,
torch._refs), which replace the former when torch is imported. The Python versions take a hundred times as long, and
give some results a different layout than CUDA: they convert half-precision operands first, which makes an expanded one
dense, and choose new strides for dims of size 1. So this module uses the C++ versions where they exist.
"""

import gc
import importlib
import threading
from functools import cache
from typing import Any

import torch
import torch._meta_registrations as registrations

from simgpu.op_info.per_op_cache import per_op_cache
from simgpu.shapes import optimizers
from simgpu.storage import meta_cache

_META = torch._C.DispatchKey.Meta
_META_KEYS = torch._C.DispatchKeySet(_META)
# Operators without a C++ meta kernel whose device-independent kernel serves all: they call empty_like's and fill it.
_FACTORIES = {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"}
# For meta tensors only, C++ checks the slices at index 0, which don't exist if no rows are added
# (aten/src/ATen/native/TensorAdvancedIndexing.cpp, index_func_meta_impl): (self, dim, index, source).
_LOOK_AT_THE_FIRST = {"index_add", "index_add_", "index_reduce", "index_reduce_"}

_kernels: dict = {}
_prepared = False
_take_numbers: set = set()
_take_number_first: set = set()  # both are tensors by type, but C++ passes the first as a number, as rsub does


def _overload(name: str):
    """Returns the OpOverload that a library lists as "aten/mul.Tensor/Meta"."""
    packet, _, overload = name.split("/")[1].partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _takes_number(operator) -> bool:
    """Returns whether a Python number may replace the second operand, which is a tensor by type."""
    arguments = operator._schema.arguments
    return len(arguments) > 1 and str(arguments[1].type) == "Tensor"


def _found() -> dict:
    """Returns C++'s kernels: it removes Python's registrations, collects the remaining kernels, and registers them
    again.
    """
    if not hasattr(torch.library, "get_kernel"):
        return {}
    library = registrations._meta_lib_dont_use_me_use_register_meta
    overloads = [_overload(name) for name in library._op_impls]
    library._destroy()
    try:
        return {
            overload: torch.library.get_kernel(overload, _META)
            for overload in overloads
            if torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "Meta") or overload._opname in _FACTORIES
        }
    finally:
        again = torch.library.Library("aten", "IMPL", "Meta")
        for overload in overloads:
            again.impl(overload, overload.py_kernels[_META])
        registrations._meta_lib_dont_use_me_use_register_meta = again
        del library  # its destructor removes its names from torch's list of registrations, which `again` shares
        torch.library._impls.update(again._op_impls)


_IMPORTED_BY_KERNELS = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes")
"""Modules that PyTorch's Python kernels import when they first run."""


def _import_what_kernels_import() -> None:
    """Imports these modules now, in a separate thread.

    They catch errors while they are imported. The frame cycle of a caught error keeps all frames below it, with their
    tensors, until Python next collects garbage. In a separate thread the program's frames are not below it. While torch
    itself is being imported, as in a process that a run has started, a second thread would wait for its lock, so they
    are imported directly.
    """
    if getattr(torch.__spec__, "_initializing", False):
        list(map(importlib.import_module, _IMPORTED_BY_KERNELS))
        gc.collect()
        return
    thread = threading.Thread(target=lambda: list(map(importlib.import_module, _IMPORTED_BY_KERNELS)))
    thread.start()
    thread.join()


def prepare() -> None:
    """Finds C++'s kernels once, outside any simulated GPU."""
    global _prepared
    if not _prepared:
        _import_what_kernels_import()
        _kernels.update(_found())
        _prepared = True
        _plan_of.forget()
        _take_numbers.update(filter(_takes_number, _kernels))
        _take_number_first.update(one for one in _take_numbers if str(one._schema.arguments[0].type) == "Tensor")


@cache
def _scalar(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty((), dtype=dtype, device="meta")


def _number(kind: type, dtype: torch.dtype) -> torch.Tensor:
    """Returns a scalar with the type promotion of a Python number of type `kind` next to a tensor of `dtype`."""
    if not dtype.is_floating_point and not dtype.is_complex:
        if kind is float:
            dtype = torch.get_default_dtype()
        elif dtype == torch.bool and kind is int:
            dtype = torch.int64
    return _scalar(dtype)


class _Plan:
    """Holds what is found out once per operator: its C++ kernel, if there is one, and its special cases."""

    def __init__(self, operator):
        self.makes_alike = operator._opname in _FACTORIES
        self.kernel = _kernels.get(operator)
        self.takes_number = operator in _take_numbers
        self.takes_number_first = operator in _take_number_first
        self.looks_at_the_first = operator._opname in _LOOK_AT_THE_FIRST
        self.increments_versions = optimizers.increments_versions(operator)


_plan_of = per_op_cache(_Plan)


def run(operator, args, kwargs) -> Any:
    """Returns the operator's result on meta tensors."""
    plan = _plan_of(operator)
    if plan.makes_alike and "out" not in kwargs:
        args, kwargs = args[:1], {name: value for name, value in kwargs.items() if name != "generator"}
        operator = torch.ops.aten.empty_like.default
        plan = _plan_of(operator)
    kernel = plan.kernel
    if kernel is None:
        made = optimizers.results(operator, args, kwargs)
        if made is NotImplemented:
            made = optimizers.result(operator, args, kwargs)
        if made is NotImplemented:
            made = meta_cache.run(operator, args, kwargs)
        if plan.increments_versions:
            torch.autograd.graph.increment_version(args[0])
        return made
    if plan.takes_number and len(args) > 1:
        if type(args[1]) in (bool, int, float):
            args = (args[0], _number(type(args[1]), args[0].dtype), *args[2:])
        elif type(args[0]) in (bool, int, float) and plan.takes_number_first:
            args = (_number(type(args[0]), args[1].dtype), *args[1:])
        elif not (isinstance(args[0], torch.Tensor) and isinstance(args[1], torch.Tensor)):
            return operator(*args, **kwargs)
    if plan.looks_at_the_first and len(args) > 2 and not args[2].numel():
        return operator(*args, **kwargs)
    return kernel.call_boxed(_META_KEYS, *args, **kwargs)


def alike(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns what C++'s empty_like() makes of a meta tensor, which keeps the strides of dims of size 1."""
    return run(torch.ops.aten.empty_like.default, (tensor,), {} if dtype is None else {"dtype": dtype})


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a meta tensor with the layout of a CPU tensor."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
