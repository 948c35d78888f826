"""PyTorch operators that the simulated GPU registers with PyTorch's dispatcher while it is on.

Where a function mode sees only what Python calls, a kernel registered here also answers C++: an operator that another
one calls inside. Two kinds, each a Python function in the file of its subject:

- `@branch("dropout")`: what CUDA's C++ makes an operator of, where it asks `is_cuda()` and a meta tensor would get
  something else. Above autograd, so it calls other operators and they make the graph.
- `@meta("mish_backward")`: shapes of an operator that has a CUDA kernel, and on meta tensors is made of others.

`hold` registers them all (and what `autocast` asks for), `let_go` takes them back, counted: nested GPUs share them.
"""

from collections.abc import Iterable, Iterator
from functools import cache, wraps

import torch

from simgpu.tensors import residence

_aten = torch.ops.aten
_VIEWS = torch._C.DispatchKey.ADInplaceOrView
_branches = {}
_above = {}  # the kernels that are made of them
_metas = {}
_libraries: list[torch.library.Library] = []
_holders = 0


def overloads(names: Iterable[str]) -> Iterator:
    """The OpOverloads of aten that names say: "mm" is all of its overloads, "mm.default" is one."""
    for name in names:
        packet, _, overload = name.partition(".")
        packet = getattr(_aten, packet)
        for one in [overload] if overload else packet.overloads():
            yield getattr(packet, one)


def branch(*names: str):
    """Registers what CUDA makes of these operators of aten ("softmax.int"; "dropout" is its default overload), all of
    CompositeImplicitAutograd kind."""

    def register(function):
        for name in names:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(_aten, packet), overload or "default")
            _branches[operator] = function
            _above[operator] = _above_autograd(operator, function)
        return function

    return register


def meta(*names: str):
    """Registers the shapes of these operators of aten: "_fused_sgd_" is its default overload."""

    def register(function):
        for name in names:
            packet, _, overload = name.partition(".")
            _metas[getattr(getattr(_aten, packet), overload or "default")] = function
        return function

    return register


def has_shapes(operator) -> bool:
    """Whether `meta` has the shapes of an operator."""
    return operator in _metas


def branch_of(operator):
    """What CUDA makes of an operator, or None."""
    return _branches.get(operator)


def decomposed(operator, args, kwargs):
    """An operator of CompositeImplicitAutograd kind, as PyTorch's C++ makes it of others."""
    return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


@cache
def notes_its_result(operator) -> bool:
    """Whether an operator has a kernel that notes its result as a view."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "ADInplaceOrView")


def composite(operator, args, kwargs):
    """An operator of that kind that came whole to the dispatch mode, as in inference mode; CUDA's branch of it.

    PyTorch has switched off what notes views there, which it has not where the operator would run of itself; and C++
    asks of a view whether its base wants a gradient (should_fold in LinearAlgebra.cpp). Not so for the few operators
    that note their own result (narrow, chunk), which must not have been noted before.
    """
    if notes_its_result(operator):
        return decomposed(operator, args, kwargs)
    branch = branch_of(operator) if simulated(args) else None
    off = torch._C._dispatch_tls_is_dispatch_key_excluded(_VIEWS)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_VIEWS, False)
    try:
        return branch(*args, **kwargs) if branch else decomposed(operator, args, kwargs)
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_VIEWS, off)


def simulated(arguments) -> bool:
    """Whether the first tensor among an operator's arguments is one of the simulated GPU that is on."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return residence.on_current(argument)
        if isinstance(argument, (list, tuple)) and argument and isinstance(argument[0], torch.Tensor):
            return residence.on_current(argument[0])
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
    """A library for kernels at a dispatch key, taken back with the rest by `let_go`."""
    _libraries.append(torch.library.Library(namespace, "IMPL", key))
    return _libraries[-1]


def hold(*more) -> None:
    """Registers everything, unless a GPU that is on has done so. `more`: functions that register through `library`."""
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
    above = library("AutogradMeta")
    for operator, kernel in _above.items():
        above.impl(operator, kernel)
    below = library("Meta")
    for operator, function in _metas.items():
        # not Library.impl, which refuses: it would have such operators decompose, as CUDA does not
        below.m.impl(operator.name().removeprefix("aten::"), "Meta", function)  # pyright: ignore[reportOptionalMemberAccess]
    for register in more:
        register()


def let_go() -> None:
    """Takes everything back, with the last GPU that goes off."""
    global _holders
    _holders -= 1
    if _holders == 0:
        _destroy()


def _destroy() -> None:
    while _libraries:
        _libraries.pop()._destroy()
