"""Which module of the program each block belongs to: the one that owns it, or the one that ran when it was allocated.

Modules are known by the names that `named_modules()` of the outermost one gives. A parameter belongs to the module that
holds it, and its gradient and its optimizer states belong there too. Any other block belongs to the innermost module
whose call was on the stack. In a backward pass no module is called. There a block belongs to the module that ran when
the node of autograd's graph was made. What an optimizer allocates for its own work belongs to none.
"""

from __future__ import annotations

import re
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

import torch
import torch.utils.checkpoint
from torch import nn

from simgpu.report.owners import ACTIVATIONS, GATHERED, GRADIENTS, PARAMETERS, STATES, TEMPORARIES
from simgpu.report.places import DEEPEST, codes_of

_CALL = nn.Module._wrapped_call_impl.__code__
"""The function that every call of a module runs. Its frame has the module as `self`."""

_CHECKPOINT = torch.utils.checkpoint.__file__

_next_number = torch._C._autograd._get_sequence_nr  # pyright: ignore[reportAttributeAccessIssue]
OF_LEAVES = 1 << 40
"""From here on a node's number is not a count: of those that add to gradients, and of a second derivative."""
NESTED = 3
"""Tuples and dictionaries inside each other in which a call's tensors are looked for."""
MOST = 100_000
"""Changes from one module to the next that are remembered, the newest."""

COLUMNS = {
    PARAMETERS: "parameters",
    GATHERED: "gathered",
    GRADIENTS: "gradients",
    STATES: "states",
    ACTIVATIONS: "saved",
    TEMPORARIES: "temporaries",
}
"""The fields of a row by the part of the page; every other part is "other"."""


SIZES = (*COLUMNS.values(), "other")
"""All fields of a row that are sizes."""


@dataclass(frozen=True)
class Module:
    """What one module holds at the peak, in bytes, by the parts of the page.

    `model`: the class of the outermost module, with a number if there are several of it. `name`: the name in it, "" for
    itself. `kind`: the module's own class. All three are "" in the row of what belongs to no module.
    """

    model: str
    name: str
    kind: str
    parameters: int = 0
    gradients: int = 0
    states: int = 0
    saved: int = 0
    temporaries: int = 0
    other: int = 0
    gathered: int = 0

    @property
    def total(self) -> int:
        """All bytes of the row."""
        return sum(getattr(self, name) for name in SIZES)


def natural(name: str) -> list[list[tuple[int, int, str]]]:
    """Returns a key that sorts names of modules by their numbers: "layers.2" before "layers.10"."""
    parts = [re.split(r"(\d+)", part) for part in name.split(".")]
    return [[(0, int(one), "") if one.isdecimal() else (1, 0, one) for one in part if one] for part in parts]


class Known:
    """A module that was seen: its class, its name, and the outermost module that this name is relative to."""

    __slots__ = ("kind", "label", "model", "name", "ref")

    def __init__(self, module: nn.Module):
        self.ref = weakref.ref(module)
        self.kind = type(module).__name__
        self.name: str | None = None
        self.label = ""  # of an outermost one: its class, and its number among several of that class
        self.model = self


class Modules:
    """Knows the program's modules. `place(tensor, known)` is called for each parameter and buffer of a named module.

    `here(tensor)`: whether a tensor uses this GPU's memory, which those of a module from an earlier GPU do not.
    """

    def __init__(self, place: Callable[[torch.Tensor, Known], None], here: Callable[[torch.Tensor], bool]):
        self._known: dict[int, Known] = {}
        self._place = place
        self._here = here
        self._models: Counter = Counter()  # outermost modules by their class
        self._numbers: list[int] = []  # sequence numbers of autograd's nodes, from which on a module ran
        self._ran: list[Known | None] = []  # these modules
        self.kinds: dict[tuple[str, str], str] = {}  # the class of each module by its model and name

    def records(self, known: Known | None) -> None:
        """Notes that autograd records an operator now, and which module runs."""
        if not self._ran or self._ran[-1] is not known:
            self._numbers.append(_next_number() - 1)  # the operator's node exists when it allocates
            self._ran.append(known)
            if len(self._ran) > MOST:
                del self._numbers[: MOST // 2], self._ran[: MOST // 2]

    def of_node(self, node) -> Known | None:
        """Returns the module that ran when a node of autograd's graph was made, None if none did."""
        number = -1 if node is None else node._sequence_nr()
        if number < 0 or not self._numbers or number >= OF_LEAVES:
            return None
        return self._ran[max(0, bisect_right(self._numbers, number) - 1)]

    def running(self, frame) -> Known | None:
        """Returns the innermost module that is called on a stack, None if none is."""
        calls = _calls(frame)
        innermost = next(calls, None)
        if innermost is None:
            return None
        known = self._of(innermost)
        if known.name is None:
            *_, outermost = innermost, *calls
            self._name(outermost)
            if known.name is None:
                self._name(innermost)  # the outermost one calls it, and does not hold it
        return known

    def arguments(self, frame) -> Iterator[tuple[Known, torch.Tensor]]:
        """Yields the tensors among the arguments of the modules that are called on a stack, each with its module."""
        for at in _frames(frame):
            module, given = _called(at)
            known = self._of(module)
            for tensor in _tensors(given):
                yield known, tensor

    def name_all(self, modules: Iterable[nn.Module]) -> None:
        """Names modules again, below those that are inside no other of them. Those that have no memory here and were
        not called may be of an earlier program, so they get no name."""
        modules = list(modules)
        inside = {id(child) for one in modules for child in _children(one).values()}
        for one in modules:
            if id(one) not in inside and self._concerns(one):
                self._name(one)

    def _concerns(self, outermost: nn.Module) -> bool:
        """Returns whether a module, or one inside it, was called or has a tensor on this GPU."""
        return any(self._is_known(module) or any(map(self._here, _owned(module))) for _, module in _named(outermost))

    def _is_known(self, module: nn.Module) -> bool:
        known = self._known.get(id(module))
        return known is not None and known.ref() is module

    def _of(self, module: nn.Module) -> Known:
        if not self._is_known(module):
            self._known[id(module)] = Known(module)
        return self._known[id(module)]

    def _name(self, outermost: nn.Module) -> None:
        model = self._of(outermost)
        if not model.label:
            self._models[model.kind] += 1
            number = self._models[model.kind]
            model.label = model.kind if number == 1 else f"{model.kind} #{number}"
        placed: set[int] = set()  # a tensor that two modules share belongs to the first
        for name, module in _named(outermost):
            known = self._of(module)
            known.name, known.model = name, model
            self.kinds[model.label, name] = known.kind
            for tensor in _owned(module):
                if id(tensor) not in placed:
                    placed.add(id(tensor))
                    self._place(tensor, known)


def _owned(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yields a module's own parameters and buffers."""
    for tensors in (vars(module).get("_parameters", {}), vars(module).get("_buffers", {})):
        yield from (one for one in tensors.values() if isinstance(one, torch.Tensor))


def _calls(frame) -> Iterator[nn.Module]:
    """Yields the modules that are called on a stack, the innermost first."""
    for at in _frames(frame):
        yield _called(at)[0]


def _frames(frame) -> Iterator:
    """Yields the frames of a stack in which a module is called, the innermost first."""
    for _ in range(DEEPEST):
        if frame is None:
            return
        if frame.f_code is _CALL:
            yield frame
        frame = frame.f_back


def calls_one(frame) -> bool:
    """Returns whether a module is called on a stack."""
    return next(_frames(frame), None) is not None


def recomputes(frame) -> bool:
    """Returns whether a stack of a backward pass is that of a forward that runs again: a checkpoint's or a module's."""
    return calls_one(frame) or any(code.co_filename == _CHECKPOINT for code in codes_of(frame))


def _called(frame) -> tuple[nn.Module, tuple]:
    """Returns the module of a call's frame, and its arguments. Before Python 3.13 `f_locals` is a copy, which the frame
    holds even after `traceback.clear_frames`, so it is emptied."""
    local = frame.f_locals
    module, given = local["self"], (local.get("args"), local.get("kwargs"))
    if type(local) is dict:
        local.clear()
    return module, given


def _tensors(given: object, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yields the tensors in the arguments of a call, which may be nested."""
    if isinstance(given, torch.Tensor):
        yield given
    elif depth < NESTED:
        inner = given.values() if isinstance(given, dict) else given if isinstance(given, (list, tuple)) else ()
        for one in inner:
            yield from _tensors(one, depth + 1)


def _children(module: nn.Module) -> dict[str, nn.Module]:
    """Returns the modules of a module, which may not be complete yet."""
    return {name: one for name, one in vars(module).get("_modules", {}).items() if isinstance(one, nn.Module)}


def _named(outermost: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields each module once, with its name, as `named_modules()` does."""
    seen: set[int] = set()
    left = [("", outermost)]
    while left:
        name, module = left.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield name, module
            left += [(f"{name}.{key}" if name else key, one) for key, one in reversed(_children(module).items())]


def common(ones: Iterable[Known]) -> tuple[str, str, str] | None:
    """Returns model, name and class of the innermost module that holds all of these; None if there are none.

    Those of another model than the first one's are not looked at."""
    ones = list(ones)
    if not ones:
        return None
    ones = [one for one in ones if one.model is ones[0].model]
    if all(one is ones[0] for one in ones):
        return ones[0].model.label, ones[0].name or "", ones[0].kind
    parts = zip(*((one.name or "").split(".") for one in ones), strict=False)
    name = ".".join(part for part, *_ in takewhile(lambda row: len(set(row)) == 1, parts))
    kind = ones[0].model.kind if not name else next((one.kind for one in ones if one.name == name), "several")
    return ones[0].model.label, name, kind


def rows(blocks: Iterable[tuple[tuple[str, str, str] | None, str, int]]) -> tuple[Module, ...]:
    """Returns a row per module, those with most bytes first and what belongs to none at the end.

    `blocks`: model, name and class of the module, the part, and the bytes of each block. There are no rows if no block
    belongs to a module.
    """
    sizes: dict[tuple[str, str, str], Counter] = {}
    for module, part, nbytes in blocks:
        sizes.setdefault(module or ("", "", ""), Counter())[COLUMNS.get(part, "other")] += nbytes
    outside = sizes.pop(("", "", ""), None)
    found = [Module(*key, **columns) for key, columns in sizes.items()]
    found.sort(key=lambda one: (-one.total, natural(one.model), natural(one.name)))
    return (*found, Module("", "", "", **outside)) if found and outside else tuple(found)


def totals(modules: Iterable[Module], kinds: Mapping[tuple[str, str], str]) -> tuple[Module, ...]:
    """Returns a row per module and per module that holds one, each with all modules inside it.

    A row precedes those of the modules inside it, and names are in their natural order. `kinds`: the class of a module
    by its model and name, for those that have no memory of their own. What belongs to no module has no row.
    """
    sizes: dict[tuple[str, str], Counter] = {}
    classes = {(one.model, one.name): one.kind for one in modules} | dict(kinds)
    for one in modules:
        for name in _with_parents(one.name) if one.model else ():
            row = sizes.setdefault((one.model, name), Counter())
            row.update({column: getattr(one, column) for column in SIZES})
    ordered = sorted(sizes, key=lambda key: (natural(key[0]), natural(key[1]) if key[1] else []))
    return tuple(Module(*key, classes.get(key, ""), **sizes[key]) for key in ordered)


def _with_parents(name: str) -> Iterator[str]:
    """Yields a module's name, and the names of all modules that it is inside of: "a.b", "a" and ""."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""
