"""Values of small tensors as expressions, computed on the CPU when somebody asks for them and not before.

What a storage of the simulated GPU holds is an `Expression`: bytes that are there, or the call of an operator that
gives them. It never changes: an operator that writes into a storage makes a new one from the old one. So nearly all of
them, which nobody asks for, cost a note and no computation.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

DEEPEST = 40  # calls that wait for one another; then they are computed, so that what waits does not grow without end


class Expression:
    """The bytes of one storage, `nbytes` of them, perhaps still to be computed."""

    __slots__ = ("nbytes", "depth", "_blank", "_bytes", "_call", "_slot")

    def __init__(self, nbytes: int, found: torch.Tensor | None = None, call: Call | None = None, slot=None):
        self.nbytes = nbytes
        self.depth = 0 if call is None else call.depth
        self._blank = False
        self._bytes = found
        self._call = call
        self._slot = slot
        if self.depth > DEEPEST:
            self.bytes()

    @classmethod
    def blank(cls, nbytes: int) -> Expression:
        """Bytes that nobody asks for, since what comes writes over all of them: zeros, made when that is computed."""
        found = cls(nbytes)
        found._blank = True
        return found

    def bytes(self) -> torch.Tensor | None:
        """The bytes, not to be written to. None if they cannot be computed: the CPU has no such operator."""
        if self._blank:
            return torch.zeros(self.nbytes, dtype=torch.uint8, device="cpu")
        if self._call is not None:
            call, self._call = self._call, None
            self._bytes = call.results().get(self._slot)
            self.depth = 0
        return self._bytes


class View(NamedTuple):
    """A tensor that lies in a storage whose values are an expression."""

    of: Expression
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    conjugated: bool = False  # lazily, as PyTorch does it: the bytes are those of the conjugate
    negated: bool = False  # the same: the imaginary part of what is conjugated

    def tensor(self, content: torch.Tensor) -> torch.Tensor:
        """The tensor in these bytes."""
        whole = content.numel() // self.dtype.itemsize * self.dtype.itemsize
        found = content[:whole].view(self.dtype).as_strided(self.shape, self.stride, self.offset)
        if self.conjugated:
            found = found.conj()
        return torch._neg_view(found) if self.negated else found


def view(expression: Expression, tensor: torch.Tensor) -> View:
    """A view that lies as `tensor` does in its storage."""
    lies = tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
    return View(expression, *lies, tensor.is_conj(), tensor.is_neg())  # pyright: ignore[reportArgumentType]


class Call:
    """One call of an operator, to be computed on the CPU.

    `args`, `kwargs`: as given, views in the place of simulated tensors and copies in that of the host's. `written`: the
    expressions that it writes to. `outputs`: where its new results lie, as views by their number among its results.
    """

    __slots__ = ("function", "args", "kwargs", "written", "outputs", "depth", "_found")

    def __init__(self, function, args, kwargs, written=(), outputs=None):
        self.function, self.args, self.kwargs = function, args, kwargs
        self.written, self.outputs = written, outputs or {}
        given = [one.of.depth for one in tree_leaves((args, kwargs), is_leaf=_is_view) if isinstance(one, View)]
        self.depth = 1 + max(given, default=0)
        self._found = None

    def results(self) -> dict:
        """Bytes by slot: the number of a result, or an expression that was written to. Empty if it fails."""
        if self._found is None:
            try:
                with (
                    torch._C.DisableTorchFunction(),
                    _disable_current_modes(),
                    torch.inference_mode(False),
                    torch.no_grad(),
                ):
                    self._found = self._compute()
            except (NotImplementedError, RuntimeError, TypeError, IndexError, ValueError):
                self._found = {}
            self.args = self.kwargs = self.written = self.outputs = None
        return self._found

    def _compute(self) -> dict:
        found = {}
        for expression in self.written:  # pyright: ignore[reportOptionalIterable]
            found[expression] = _bytes_of(expression).clone()

        def there(one: View):
            return one.tensor(found[one.of] if one.of in found else _bytes_of(one.of))

        args, kwargs = _mapped(there, self.args), _mapped(there, self.kwargs)
        results = taking_numbers(self.function, args)(*args, **kwargs)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        for number, where in self.outputs.items():  # pyright: ignore[reportOptionalMemberAccess]
            found[number] = torch.zeros(where.of.nbytes, dtype=torch.uint8)
            where.tensor(found[number]).copy_(results[number])
        return found


def taking_numbers(function, args):
    """The overload of an operator that takes Python numbers where this one, called with some, has tensors.

    PyTorch hands the dispatch mode a number in the place of the tensor that its C++ had made of it.
    """
    if not isinstance(function, torch._ops.OpOverload):
        return function
    declared = zip(args, function._schema.arguments, strict=False)
    numbers = any(isinstance(one, (bool, int, float, complex)) and str(of.type) == "Tensor" for one, of in declared)
    return function.overloadpacket if numbers else function


def _is_view(one) -> bool:
    return isinstance(one, View)


def _mapped(function, arguments):
    return tree_map_only(View, function, arguments, is_leaf=_is_view)


def _bytes_of(expression: Expression) -> torch.Tensor:
    content = expression.bytes()
    if content is None:
        raise RuntimeError("what it is computed from could not be")
    return content
