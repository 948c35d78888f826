"""Finds the tensors that are alive on the GPU, and the names by which the program still holds them."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from labkit.formulas import block
from labkit.units import mib

__all__: list[str] = []  # what labkit itself uses

_DEPTH = 4  # nested containers that are searched for a name
_NAMES = 3  # names shown for one tensor
_LISTED = 12  # tensors that an error message lists
_CLIMB = 8  # references followed from a tensor towards a variable


@dataclass(frozen=True)
class Living:
    """Describes a tensor on the GPU: the names found for it, and the bytes of its storage's block."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size: int

    def __str__(self) -> str:
        return f"{self.name}  {list(self.shape)} {self.dtype}  {mib(self.size)}"


def living(*scopes: Mapping[str, object]) -> list[Living]:
    """Returns the tensors alive on the GPU, one per storage, largest first.

    They are those that Python's garbage collector tracks. A tensor that only an autograd graph or a library holds is
    not a Python object, so it is missing. Names are searched in ``scopes`` (``locals()``, ``globals()``), in the
    notebook's namespace (also ``Out`` and ``_``) and in the frames of the last exception.
    """
    known: dict[int, list[str]] = {}
    for scope in (*scopes, vars(sys.modules["__main__"])):
        _name_tensors(scope, known)
    raised: dict[int, list[str]] = {}
    _name_tensors(_last_exception(), raised)
    for key, named in raised.items():
        known.setdefault(key, named[:1])  # the name in the outermost frame is enough
    with torch._C.DisableTorchFunctionSubclass():  # a subclass may raise when its device is read
        by_storage = _by_storage()
    nameless = [t for sharing in by_storage.values() if not any(known.get(id(t)) for t in sharing) for t in sharing]
    ours = [nameless, *by_storage.values()]
    inside = _climb(nameless, [*scopes, vars(sys.modules["__main__"])], ours)
    found = []
    for sharing in by_storage.values():
        with torch._C.DisableTorchFunctionSubclass():
            widest = max(sharing, key=lambda t: (t.numel(), id(t) in known))
            size = block(widest.untyped_storage().nbytes())
            shape, dtype = tuple(widest.shape), str(widest.dtype).removeprefix("torch.")
        names_of = [name for t in sharing for name in known.get(id(t), [])]
        names_of = names_of or sorted({f"inside {name}" for t in sharing for name in inside.get(id(t), [])})
        name = ", ".join(names_of[:_NAMES]) or f"(no name; held by {_holders(sharing, ours)})"
        found.append(Living(name, shape, dtype, size))
    return sorted(found, key=lambda one: (-one.size, one.name))


def any_living() -> bool:
    """Returns whether any tensor is on the GPU, also garbage that is not collected yet.

    On a real GPU these are tensors that Python's garbage collector tracks; on a simulated one, also those that only a
    graph holds.
    """
    machine = _simulated()
    if machine is not None:
        return sys.modules["simgpu.storage.storage_map"].any_on(machine)
    with torch._C.DisableTorchFunctionSubclass():
        return bool(_by_storage())


class _IsTensor(dict):
    """Caches whether a type is a subclass of Tensor."""

    def __missing__(self, kind: type) -> bool:
        answer = self[kind] = issubclass(kind, Tensor)
        return answer


def _by_storage() -> dict[int, list[Tensor]]:
    """Returns the tensors on the GPU in use, by their storage's address in C++."""
    found: dict[int, list[Tensor]] = {}
    is_tensor = _IsTensor()
    # type(), not isinstance(): lazy modules and weak proxies answer isinstance with side effects.
    for t in [o for o in gc.get_objects() if is_tensor[type(o)]]:
        with contextlib.suppress(Exception):  # such a tensor holds its memory in other tensors, which don't raise
            # a lazy parameter has no shape yet, and raises
            if not _wraps(t) and _on_this_gpu(t) and t.shape is not None:
                found.setdefault(t.untyped_storage()._cdata, []).append(t)
    return found


def _wraps(t: Tensor) -> bool:
    """Returns whether a tensor is made of other tensors and allocates no memory itself: a DTensor, a nested tensor."""
    return hasattr(type(t), "__tensor_flatten__")


def _on_this_gpu(t: Tensor) -> bool:
    """Returns whether a tensor uses memory of the GPU in use, and not of an earlier simulated one."""
    machine = _simulated()
    if machine is None:
        return t.is_cuda
    found = sys.modules["simgpu.storage.storage_map"].of(t)
    return found is not None and found.on_gpu and found.machine is machine


def _simulated():
    """Returns the simulated GPU in use, or None."""
    machines = sys.modules.get("simgpu.device.machine")  # the simulator is not imported unless it is in use
    return machines.current() if machines else None


def _name_tensors(root: Mapping[str, object], known: dict[int, list[str]]) -> None:
    """Adds to ``known`` the names that reach tensors from ``root``, through containers and modules."""
    seen: set[int] = set()
    # The reader's variables come first, then the notebook's Out, then its _, __, _3 and so on.
    roots = sorted(root.items(), key=lambda item: (item[0].startswith("_"), item[0] == "Out"))
    level = [(name, o) for name, o in roots if name != "_oh"]  # IPython's other name for Out
    for _ in range(_DEPTH):
        below = []
        for name, o in level:
            if id(o) not in seen:
                # A user-defined module or container may raise when its parts are listed.
                with contextlib.suppress(Exception), torch._C.DisableTorchFunctionSubclass():
                    below += _parts(name, o)
            if issubclass(type(o), Tensor):
                names = known.setdefault(id(o), [])
                if name not in names:
                    names.append(name)
            seen.add(id(o))
        level = [(name, o) for name, o in below if _has_parts(o)]


def _has_parts(o: object) -> bool:
    return issubclass(type(o), (Tensor, nn.Module, torch.optim.Optimizer, dict, list, tuple))


def _parts(name: str, o) -> list[tuple[str, object]]:
    """Returns the parts of ``o`` that may be or contain tensors, each with the name that reaches it."""
    if not _has_parts(o):
        return []
    kind = type(o)
    if issubclass(kind, Tensor):
        of_gradient = [(f"{name}.grad", o.grad)] if o.is_leaf and o.grad is not None else []
        inside = o.__tensor_flatten__()[0] if _wraps(o) else []  # pyright: ignore[reportAttributeAccessIssue]
        return [*of_gradient, *((name, getattr(o, part)) for part in inside)]
    if issubclass(kind, nn.Module):
        return [(f"{name}.{part}", t) for part, t in (*o.named_parameters(), *o.named_buffers())]
    if issubclass(kind, torch.optim.Optimizer):
        states = [(f"{name}.state[{i}][{k!r}]", t) for i, s in enumerate(o.state.values()) for k, t in s.items()]
        groups = [(g, group["params"]) for g, group in enumerate(o.param_groups)]
        return states + [(f"{name}.param_groups[{g}]['params'][{i}]", t) for g, ts in groups for i, t in enumerate(ts)]
    if issubclass(kind, dict):
        return [(f"{name}[{k!r}]", v) for k, v in list(o.items()) if type(k) in (str, int)]
    return [(f"{name}[{i}]", v) for i, v in enumerate(o)]


def _last_exception() -> dict[str, object]:
    """Returns the local variables in the frames of the last uncaught exception, which keeps them alive."""
    found: dict[str, object] = {}
    traceback = getattr(sys.last_value, "__traceback__", None) if hasattr(sys, "last_value") else None
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_name != "<module>":
            where = f"the last exception, in {frame.f_code.co_name}()"
            found.update({f"{where}: {name}": o for name, o in frame.f_locals.items()})
        traceback = traceback.tb_next
    return found


def _climb(tensors: list[Tensor], scopes: list[Mapping], ours: list) -> dict[int, list[str]]:
    """Returns the variables from which tensors are reached through objects of any kind, by the tensor's id.

    It follows references upwards: from an attribute of an object, a closure, a bound argument, a queue.
    """
    named: dict[int, list[str]] = {}
    variables = {id(scope): scope for scope in scopes}
    leads = {id(t): {id(t)} for t in tensors}  # the tensors that each object leads to
    level: list[object] = list(tensors)
    skipped = {id(mine) for mine in (*ours, ours, leads, named)}
    for _ in range(_CLIMB):
        above = [o for o in gc.get_referrers(*level) if id(o) not in skipped and o is not level and _may_hold(o)]
        skipped |= {id(level), id(above)}
        below, level = leads, []
        leads = {}
        skipped.add(id(leads))
        for o in above:
            reached = set().union(*(below[id(part)] for part in gc.get_referents(o) if id(part) in below))
            if id(o) in variables:
                _enter(variables[id(o)], below, named)
            elif reached and id(o) not in skipped:
                skipped.add(id(o))
                leads[id(o)] = reached
                level.append(o)
        if not level:
            break
    return named


def _enter(scope: Mapping, leads: Mapping[int, set[int]], named: dict[int, list[str]]) -> None:
    """Names the tensors that a scope's variables lead to, for the reader's own variables only."""
    for name, value in list(scope.items()):
        if not name.startswith("_") and name not in ("Out", "In"):
            for tensor in leads.get(id(value), ()):
                if name not in named.setdefault(tensor, []):
                    named[tensor].append(name)


def _may_hold(o: object) -> bool:
    """Returns whether a search for referrers of ``o`` can reach a variable: not through frames, modules and classes."""
    return not issubclass(type(o), (FrameType, ModuleType, type)) and o is not sys.modules


def _holders(sharing: list[Tensor], ours: list) -> str:
    """Names the types of the objects that refer to the tensors: ``cell`` is a closure, ``frame`` a running function."""
    asked = tuple(sharing)  # Python 3.13 also finds the tuple of a call's arguments
    own = {id(mine) for mine in (*ours, ours, asked, sys._getframe(), sys._getframe(1))}
    kinds = {type(o).__name__ for o in gc.get_referrers(*asked) if id(o) not in own}
    return ", ".join(sorted(kinds)) or "autograd or other C++ code"


class DirtyBaseline(RuntimeError):
    """Raised when the GPU already holds memory, because what a stage adds could not be told apart from it."""


def clean_baseline(allow: int, caller: FrameType) -> int:
    """Frees everything unused on the GPU and returns the bytes that remain allocated, at most ``allow``.

    It frees outputs that the notebook has dropped, unreachable cycles, cached segments, and the cuBLAS workspaces, so
    the next matmul allocates a workspace again. Raises :class:`DirtyBaseline` if more than ``allow`` bytes remain. The
    error lists the tensors that are still alive, by the names of ``caller``'s variables. If those tensors are the
    reader's, the error is raised before cache and workspaces are freed, so it changes no later measurement.
    """
    # The variables are read before anything is counted. Up to Python 3.12 a frame keeps the copy that an earlier error
    # read, including variables deleted since then, until it is read again.
    scopes = _variables(caller), caller.f_globals
    _forget_displayed()
    # A search for cycles among the objects of all imported modules is slower than most training steps, so it runs only
    # if something is left that such cycles may hold.
    if torch.cuda.memory_allocated() and any_living():
        gc.collect()
        before = torch.cuda.memory_allocated()
        alive = living(*scopes) if before > allow else []
        if sum(one.size for one in alive) > allow:
            raise DirtyBaseline(_refusal(before, allow, alive, "the workspaces of cuBLAS, "))
    _give_back()
    if torch.cuda.memory_allocated():  # a graph's saved tensors are not Python objects
        gc.collect()
        _give_back()
    allocated = torch.cuda.memory_allocated()
    if allocated > allow:
        raise DirtyBaseline(_refusal(allocated, allow, living(*scopes)))
    return allocated


def _give_back() -> None:
    torch._C._cuda_clearCublasWorkspaces()  # PyTorch has no public name for it
    torch.cuda.empty_cache()


def _variables(frame: FrameType) -> Mapping[str, object]:
    """Returns the local variables of a frame as a dict.

    From Python 3.13 on, a function's ``f_locals`` is a view, which does not keep the values alive.
    """
    return frame.f_locals if isinstance(frame.f_locals, dict) else dict(frame.f_locals)


def _forget_displayed() -> None:
    """Drops displayed values that the reader has deleted.

    IPython also stores each displayed value in ``user_ns_hidden``, as ``_3`` and ``_``, where neither ``del`` nor
    ``%reset out`` looks for it. It keeps the result of the last cell too.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = ipython and ipython.get_ipython()
    for name, value in list(shell.user_ns_hidden.items()) if shell else ():
        numbered = name.strip("_") == "" or name[1:].isdigit()
        if numbered and shell.user_ns.get(name) is not value:
            del shell.user_ns_hidden[name]
    last = getattr(shell, "last_execution_result", None)  # of the cell before, or of this one when it ran last
    if last is not None and all(last.result is not shown for shown in shell.user_ns.get("Out", {}).values()):
        last.result = None


def _refusal(allocated: int, allow: int, alive: list[Living], also: str = "") -> str:
    lines = [f"{mib(allocated)} are allocated before the first stage, wanted at most {mib(allow)}; alive are"]
    lines += [f"  {one}" for one in alive[:_LISTED]]
    if alive[_LISTED:]:
        rest = sum(one.size for one in alive[_LISTED:])
        lines.append(f"  and {len(alive) - _LISTED} smaller ones  {mib(rest)}")
    unseen = allocated - sum(one.size for one in alive)
    if unseen > 0:
        lines.append(
            f"  and {mib(unseen)} in no Python object: {also}what autograd saved for a backward that has not run,"
            " which goes with its output, or remainders of blocks"
        )
    lines.append(
        "Release these names (`x = None`; `%reset -f out` for Out[...] and _) and run this cell again, which also frees"
        " what the last exception holds; or restart the kernel."
        f" Ledger(allow={allocated}) accepts them as the baseline."
    )
    return "\n".join(lines)
