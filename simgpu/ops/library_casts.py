"""autocast("cuda") for operators of libraries: calls the kernel that they registered in Python or in C++.

`torch.library.register_autocast`, or a C++ library such as torchvision, registers a kernel at the key AutocastCUDA.
That kernel checks whether a tensor is on CUDA before it casts it, but a simulated tensor is a meta tensor. So the
kernel is called with tensors that report "cuda" and hold a simulated one (`_OnCUDA`). What the kernel calls with them,
the casts and the operator itself, is then called with the simulated tensors. Autograd works as if there were no such
kernel.
"""

import sys
from collections.abc import Callable, Iterator

import torch
from torch.utils import _pytree as pytree

_CUDA = "AutocastCUDA"
_keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _CUDA))
_TO_COPY = torch.ops.aten._to_copy.default
_make = torch.Tensor._make_wrapper_subclass  # PyTorch's function, saved because a simulated GPU patches it

_known: set[str] = set()  # names of operators that have a kernel already
_looked: tuple[int, ...] = ()


def forget() -> None:
    """Resets the module: no operator has a kernel."""
    global _looked
    _known.clear()
    _looked = ()


def new_ones() -> Iterator[torch._ops.OpOverload]:
    """Yields operators of libraries that have a kernel for autocast("cuda") and were not yielded before.

    Only a new module, a shared library or a registration from Python can add one. Asking the dispatcher costs 5 ms, so
    it is asked only after one of these.
    """
    global _looked
    now = len(sys.modules), len(torch.ops.loaded_libraries), len(torch.library._impls)
    if now == _looked:
        return
    _looked = now
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(_CUDA):
        if not name.startswith("aten::") and name not in _known:
            _known.add(name)
            space, _, rest = name.partition("::")
            packet, _, overload = rest.partition(".")
            yield getattr(getattr(getattr(torch.ops, space), packet), overload or "default")


def policy(cast: Callable):
    """Returns the autocast policy for operators of libraries.

    `cast(tensor, dtype)` casts as C++ does, with the cache of weights.
    """

    def call(operator, args, kwargs):
        tls = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        around = sys._getframe().f_code

        def below(function, given, named):
            """Calls what the registered kernel calls, with the simulated tensors."""
            from_cpp = sys._getframe(2).f_code is around  # Python's register_autocast has no cache
            with torch._C._ForceDispatchKeyGuard(*tls):
                if function is _TO_COPY and from_cpp and set(named) <= {"dtype"}:
                    return cast(given[0], named["dtype"])
                return function(*given, **named)

        def dressed(one):
            return _OnCUDA(one, below) if one.is_meta else one

        kernel = torch.library.get_kernel(operator, _CUDA)
        args, kwargs = pytree.tree_map_only(torch.Tensor, dressed, (args, kwargs))
        return _undressed(kernel.call_boxed(_keys, *args, **kwargs))

    return call


class _OnCUDA(torch.Tensor):
    """Wraps a simulated tensor and reports "cuda"; `below` runs the calls made with it."""

    inside: torch.Tensor
    below: Callable

    @staticmethod
    def __new__(cls, inside: torch.Tensor, below: Callable):
        form = {"dtype": inside.dtype, "device": torch.device("cuda")}
        made = _make(cls, inside.shape, inside.stride(), inside.storage_offset(), **form)
        made.inside, made.below = inside, below
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
        below = next(one.below for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, cls))
        args, kwargs = _undressed((args, kwargs or {}))
        result = below(function, args, {name: one for name, one in kwargs.items() if name != "device"})
        return pytree.tree_map_only(torch.Tensor, lambda one: cls(one, below) if one.is_meta else one, result)


def _undressed(arguments):
    return pytree.tree_map_only(_OnCUDA, lambda one: one.inside, arguments)
