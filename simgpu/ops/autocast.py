"""autocast(\"cuda\") on the simulated GPU, for PyTorch's operators and for those of libraries."""

import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from simgpu.device import machine as machines
from simgpu.ops import dispatcher
from simgpu.storage import storage_map

# autocast("cuda") for operators of libraries: calls the kernel that they registered in Python or in C++.
# `torch.library.register_autocast`, or a C++ library such as torchvision, registers a kernel at the key AutocastCUDA.
# That kernel checks whether a tensor is on CUDA before it casts it, but a simulated tensor is a meta tensor. So the
# kernel is called with tensors that report "cuda" and hold a simulated one (`_OnCUDA`). What the kernel calls with
# them, the casts and the operator itself, is then called with the simulated tensors. Autograd works as if there were
# no such kernel.

_CUDA = "AutocastCUDA"
_keys_of_libraries = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _CUDA))
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
        return _undressed(kernel.call_boxed(_keys_of_libraries, *args, **kwargs))

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


# autocast("cuda") on the simulated GPU.
# In PyTorch's C++ a kernel at the dispatch key AutocastCUDA casts the arguments of each listed operator and calls the
# operator again below that key (aten/src/ATen/autocast_mode.h). It skips tensors that are not `is_cuda()`, and a
# simulated tensor is not. So the same operators get a kernel of this module at a key of the same height,
# AutocastPrivateUse1. autocast("cuda") switches that key on and off in each thread. Operators that C++ calls inside
# others are cast too, and backward runs in the dtype that forward chose. While autocast is off, the kernels cost
# nothing.

KEY = "AutocastPrivateUse1"
_key = getattr(torch._C.DispatchKey, KEY)
_keys = torch._C.DispatchKeySet(_key) | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
_aten = torch.ops.aten


class _OfThread(threading.local):
    """Holds whether this thread's calls are cast: False outside regions, and below an operator that has been cast.

    PyTorch's own state is that of its excluded keys, but inside a dispatch mode all keys above the mode are excluded.
    """

    on = False


_here = _OfThread()


HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
"""PyTorch's lists of operators by policy, which every build contains for C++ extensions."""


def _listed(policy: str) -> frozenset[str]:
    """Returns the operators of one macro of the header, for instance "softmax.int" for _(softmax, int)."""
    text = HEADER.read_text(encoding="utf-8").replace("\\\n", " ") if HEADER.exists() else ""
    _, _, rest = text.partition(f"#define AT_FORALL_{policy}(_)")
    entries = re.findall(r"_\(\s*(\w+)\s*(?:,\s*(\w+)\s*)?\)", rest.partition("\n")[0])
    if not entries:
        raise RuntimeError(
            f"torch {torch.__version__} has no list AT_FORALL_{policy} in {HEADER}, from which simgpu reads what "
            "autocast casts: install a torch that simgpu supports, from its wheel"
        )
    return frozenset(f"{name}.{overload}" if overload else name for name, overload in entries)


# autocast_mode.cpp adds cuDNN's for CUDA alone.
LOWER = _listed("LOWER_PRECISION_FP") | {"cudnn_convolution", "cudnn_convolution_transpose"}
FP32 = _listed("FP32")
FP32_RESULT = _listed("FP32_SET_OPT_DTYPE")
NORM = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
WIDEST = _listed("PROMOTE")
BANNED = {
    "binary_cross_entropy": (
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
        "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
        "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
        "safe to autocast."
    )
}


def lower_precision() -> torch.dtype:
    """Returns the dtype of the current autocast("cuda") region."""
    return torch.get_autocast_dtype("cuda")


def eligible(value) -> bool:
    """Returns whether autocast("cuda") may cast this argument: a floating-point tensor on the GPU, and not fp64."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype.is_floating_point
        and value.dtype != torch.float64
        and storage_map.on_current(value)
    )


def cast(value, dtype: torch.dtype):
    """Returns an argument (tensors in lists included) as autocast passes it on: in `dtype` if it is eligible.

    Casts of weights (fp32 leaves that require a gradient) to the lower precision are cached until the outermost region
    ends. They require a gradient even if gradients are disabled. In inference mode they are not cached (cached_cast in
    autocast_mode.cpp). PyTorch's cache is a hash map by address, which frees its tensors in an unpredictable order.
    Here they are freed in the order of their creation.
    """
    if isinstance(value, (list, tuple)):
        return [cast(item, dtype) for item in value]
    if not eligible(value) or value.dtype == dtype:
        return value
    keep = (
        value.dtype == torch.float32
        and value.requires_grad
        and value.is_leaf
        and dtype == lower_precision()
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    )
    if not keep:
        return value.to(dtype)
    casts = machines.on().casts
    known = casts.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    with torch.enable_grad():
        made = value.to(dtype)
    casts[id(value)] = weakref.ref(value), made
    return made


def _all(operator, dtype, args, kwargs):
    """Casts all arguments, calls the operator and returns its result.

    The last argument is cast first and the first one freed first, as in compiled C++. In a list the first element is
    cast and freed first, but a Python list would free it last.
    """
    named = {name: cast(kwargs[name], dtype) for name in reversed(kwargs)}
    made = [cast(arg, dtype) for arg in reversed(args)]
    result = operator(*reversed(made), **named)
    while made:
        freed = made.pop()
        if isinstance(freed, list):
            freed.reverse()
            while freed:
                freed.pop()
    return result


def _to_lower(operator, args, kwargs):
    return _all(operator, lower_precision(), args, kwargs)


def _to_fp32(operator, args, kwargs):
    return _all(operator, torch.float32, args, kwargs)


def _with_fp32_result(operator, args, kwargs):
    """Leaves the input as it is and makes the result fp32, unless the call gives a dtype."""
    if not eligible(args[0]):
        return operator(*args, **kwargs)
    position = next(i for i, argument in enumerate(operator._schema.arguments) if argument.name == "dtype")
    if operator._schema.arguments[position].kwarg_only:
        return operator(*args, **{**kwargs, "dtype": kwargs.get("dtype") or torch.float32})
    if len(args) > position and args[position] is not None:
        return operator(*args, **kwargs)
    defaults = [argument.default_value for argument in operator._schema.arguments[len(args) : position]]
    return operator(*args[:position], *defaults, torch.float32, **kwargs)


def _norm(operator, args, kwargs):
    """Calls the overload of norm that takes the dtype of the result: fp32, or the input's dtype if it is not
    eligible.
    """
    dtype = torch.float32 if eligible(args[0]) else args[0].dtype
    with_dtype = _named(NORM[_name(operator)])
    defaults = [argument.default_value for argument in operator._schema.arguments[len(args) :]]
    return with_dtype(*args, *defaults, dtype=dtype, **kwargs)


def _to_widest(operator, args, kwargs):
    """Casts all arguments to fp32 if one of them is fp32, else to the lower precision.

    Raises RuntimeError for other eligible dtypes (promote_type, prioritize).
    """
    widest = lower = lower_precision()
    for value in _flat((*args, *kwargs.values())):
        if eligible(value) and widest != torch.float32:
            if value.dtype not in (torch.float32, lower):
                raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
            widest = value.dtype
    return _all(operator, widest, args, kwargs)


def _flat(values):
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def _refuse(operator, args, kwargs):
    if eligible(args[0]):
        raise RuntimeError(BANNED[_name(operator)])
    return operator(*args, **kwargs)


_OF_LIBRARIES = policy(cast)


def _name(operator) -> str:
    """Returns an operator's name as the lists have it: "mm" or "sum.dim_IntList"."""
    return operator.name().removeprefix("aten::")


def _named(name: str):
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


def _policy_of(name: str):
    if name in FP32:
        return _to_fp32
    if name in FP32_RESULT:
        return _with_fp32_result
    if name in NORM:
        return _norm
    if name in WIDEST:
        return _to_widest
    if name in BANNED:
        return _refuse
    return _to_lower


@cache
def listed() -> tuple[str, ...]:
    """Returns the operators that autocast("cuda") handles in the running PyTorch, as the dispatcher lists them."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return tuple(
        name.removeprefix("aten::")
        for name in names
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    )


def register() -> None:
    """Registers the kernels at KEY through `dispatcher`."""
    dispatcher.library(KEY, "_").fallback(torch.library.fallthrough_kernel)
    casting = dispatcher.library(KEY)
    for operator, kernel in _kernels():
        casting.impl(operator, kernel)
    forget()


def _follow_libraries() -> None:
    """Gives operators of libraries imported since the last call a kernel that calls what they registered."""
    for operator in new_ones():
        dispatcher.library(KEY, operator.namespace).impl(operator, _kernel(operator, _OF_LIBRARIES))


@cache
def _kernels() -> list[tuple]:
    """Returns each of the `listed` operators with its kernel."""
    return [(operator, _kernel(operator, _policy_of(name))) for name in listed() for operator in (_named(name),)]


def _kernel(operator, policy):
    def kernel(*args, **kwargs):
        _here.on = False
        try:
            with torch._C.DisableTorchFunction(), torch._C._ExcludeDispatchKeyGuard(_keys):
                return policy(operator, args, kwargs)
        finally:
            _here.on = True

    return kernel


def composite(operator, args, kwargs):
    """Runs `dispatcher.composite` in the dispatch mode, so that the parts of an operator are cast as without the mode.


    The C++ of a composite operator runs above autocast's kernels, unless an operator around it has been cast. For
    example, upsample_nearest2d.vec calls upsample_nearest2d, which autocast_mode.h lists. Inside a dispatch mode
    autocast's key is excluded, with all keys before the mode's own (PythonFallbackKernel.cpp, pythonFallback).
    """
    if not _here.on:
        return dispatcher.composite(operator, args, kwargs)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_key, False)
    try:
        return dispatcher.composite(operator, args, kwargs)
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_key, True)


def switch(enabled: bool) -> None:
    """Switches on or off that this thread's operators pass through the kernels at KEY."""
    if enabled:
        _follow_libraries()
    _here.on = enabled
    torch._C._dispatch_tls_set_dispatch_key_excluded(_key, not enabled)
    torch._C._dispatch_tls_set_dispatch_key_included(_key, enabled)


def patch(patches) -> None:
    """Patches torch's switches of autocast("cuda") and of its cache, so that they work for the simulated GPU too."""
    set_enabled, clear_cache = torch.set_autocast_enabled, torch.clear_autocast_cache

    def set_autocast_enabled(*args, **kwargs):
        set_enabled(*args, **kwargs)
        switch(torch.is_autocast_enabled("cuda"))

    def clear_autocast_cache():
        clear_cache()
        machine = machines.current()
        if machine is not None:
            machine.casts.clear()

    for owner in (torch, torch._C):
        patches.apply(owner, "set_autocast_enabled", set_autocast_enabled)
        patches.apply(owner, "clear_autocast_cache", clear_autocast_cache)


def start() -> None:
    """Switches casting on if an autocast region is already open."""
    switch(torch.is_autocast_enabled("cuda"))


def stop() -> None:
    """Switches casting off, unless an outer simulated GPU is active again inside its own autocast region."""
    switch(machines.current() is not None and torch.is_autocast_enabled("cuda"))
