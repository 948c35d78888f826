"""Registers operators of the simulated GPU with PyTorch's dispatcher while it is on.

A function mode sees only calls from Python, but a kernel registered here also answers C++, for operators that are
called inside others. There are two kinds, each a Python function in the file of its subject:

- `@cuda_composite("dropout")`: the operators that CUDA's C++ calls for an operator where it checks `is_cuda()` and a
  meta tensor would get something else. It is above autograd, so it calls other operators and they make the graph.
- `@meta("mish_backward")`: the shapes of an operator that has a CUDA kernel, but is decomposed for meta tensors.

`hold` registers them all (and what `autocast` needs), and `let_go` removes them. Nested GPUs share them by a count.
"""

from functools import cache, wraps

import torch

from simgpu.op_info.op_spec import defaults, registers, spec, specs
from simgpu.storage import storage_map

_VIEWS = torch._C.DispatchKey.ADInplaceOrView
_libraries: list[torch.library.Library] = []
_holders = 0


cuda_composite = registers("composite", defaults)
"""Registers CUDA's implementation of CompositeImplicitAutograd operators ("softmax.int"; "dropout" is its default
overload).
"""
meta = registers("shapes", defaults)
"""Registers the shapes of these operators of aten: "_fused_sgd_" is its default overload."""


def decomposed(operator, args, kwargs):
    """Runs a CompositeImplicitAutograd operator as PyTorch's C++ decomposes it."""
    return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


@cache
def notes_its_result(operator) -> bool:
    """Returns whether an operator has a kernel that records its result as a view."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "ADInplaceOrView")


def composite(operator, args, kwargs):
    """Runs such an operator that reached the dispatch mode as a whole, as in inference mode, with CUDA's
    implementation.

    At this point PyTorch has disabled the recording of views, which is enabled when the operator runs directly. C++
    checks for a view whether its base requires a gradient (should_fold in LinearAlgebra.cpp), so the recording is
    enabled again. The few operators that record their own result (narrow, chunk) are excepted, because it must not be
    recorded before.
    """
    if notes_its_result(operator):
        return decomposed(operator, args, kwargs)
    branch = spec(operator).composite if simulated(args) else None
    off = torch._C._dispatch_tls_is_dispatch_key_excluded(_VIEWS)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_VIEWS, False)
    try:
        return branch(*args, **kwargs) if branch else decomposed(operator, args, kwargs)
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_VIEWS, off)


def simulated(arguments) -> bool:
    """Returns whether the first tensor among an operator's arguments belongs to the simulated GPU that is on."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return storage_map.on_current(argument)
        if isinstance(argument, (list, tuple)) and argument and isinstance(argument[0], torch.Tensor):
            return storage_map.on_current(argument[0])
    return False


def _above_autograd(operator, function):
    @wraps(function)
    def kernel(*args, **kwargs):
        with torch._C.DisableTorchFunction():
            if simulated(args):
                return function(*args, **kwargs)
            return decomposed(operator, args, kwargs)

    return kernel


def library(key: str, namespace: str = "aten") -> torch.library.Library:
    """Returns a library for kernels at a dispatch key, which `let_go` removes with the rest."""
    _libraries.append(torch.library.Library(namespace, "IMPL", key))
    return _libraries[-1]


def hold(*more) -> None:
    """Registers everything unless a GPU that is on has done so. `more` are functions that register through
    `library`.
    """
    global _holders
    if _holders:
        _holders += 1
        return
    try:
        _register(more)
    except BaseException:
        _destroy()
        raise
    _holders = 1


def _register(more) -> None:
    above, below = library("AutogradMeta"), library("Meta")
    for one in specs():
        if one.composite is not None:
            above.impl(one.operator, _above_autograd(one.operator, one.composite))
        if one.shapes is not None:
            # not Library.impl, which refuses these because it would decompose them, as CUDA does not
            below.m.impl(one.operator.name().removeprefix("aten::"), "Meta", one.shapes)  # pyright: ignore[reportOptionalMemberAccess]
    for register in more:
        register()


def let_go() -> None:
    """Removes everything when the last GPU goes off."""
    global _holders
    _holders -= 1
    if _holders == 0:
        _destroy()


def _destroy() -> None:
    while _libraries:
        _libraries.pop()._destroy()
