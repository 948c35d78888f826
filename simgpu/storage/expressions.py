"""Represents the values of small tensors as expressions, which the CPU computes only when they are read.

A storage of the simulated GPU holds an `Expression`: existing bytes, or the operator call that computes them. An
expression never changes; an operator that writes into a storage creates a new one from the old one. Most values are
never read, so most expressions cost a record and no computation.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

DEEPEST = 40  # the most nested calls; then they are computed, so that the chain does not grow without bound


class Expression:
    """The bytes of one storage, `nbytes` of them, which may still have to be computed."""

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
        """Returns an expression for bytes that will be overwritten completely: zeros, created when it is computed."""
        found = cls(nbytes)
        found._blank = True
        return found

    def bytes(self) -> torch.Tensor | None:
        """Returns the bytes, which must not be written to, or None if the CPU lacks the operator to compute them."""
        if self._blank:
            return torch.zeros(self.nbytes, dtype=torch.uint8, device="cpu")
        if self._call is not None:
            call, self._call = self._call, None
            self._bytes = call.results().get(self._slot)
            self.depth = 0
        return self._bytes


class View(NamedTuple):
    """A tensor in a storage whose values are an expression."""

    of: Expression
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    conjugated: bool = False  # lazily, as in PyTorch: the bytes are those of the conjugate
    negated: bool = False  # also lazily: the imaginary part of a conjugate

    def tensor(self, content: torch.Tensor) -> torch.Tensor:
        """Returns the tensor in these bytes."""
        whole = content.numel() // self.dtype.itemsize * self.dtype.itemsize
        found = content[:whole].view(self.dtype).as_strided(self.shape, self.stride, self.offset)
        if self.conjugated:
            found = found.conj()
        return torch._neg_view(found) if self.negated else found


def view(expression: Expression, tensor: torch.Tensor) -> View:
    """Returns a view with the layout of `tensor` in its storage."""
    lies = tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
    return View(expression, *lies, tensor.is_conj(), tensor.is_neg())  # pyright: ignore[reportArgumentType]


class Call:
    """One call of an operator, to be computed on the CPU.

    `args` and `kwargs` are the call's, with views in place of simulated tensors and copies in place of host tensors.
    `written` holds the expressions that it writes to. `outputs` gives the place of each new result, as a view by the
    result's number.
    """

    __slots__ = ("function", "args", "kwargs", "written", "outputs", "depth", "_found")

    def __init__(self, function, args, kwargs, written=(), outputs=None):
        self.function, self.args, self.kwargs = function, args, kwargs
        self.written, self.outputs = written, outputs or {}
        given = [one.of.depth for one in tree_leaves((args, kwargs), is_leaf=_is_view) if isinstance(one, View)]
        self.depth = 1 + max(given, default=0)
        self._found = None

    def results(self) -> dict:
        """Returns bytes by slot, which is the number of a result, or an expression that was written to; {} if it
        fails.
        """
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
    """Returns the overload that accepts Python numbers where this call has numbers in place of tensors.

    PyTorch passes the dispatch mode a number in place of the tensor that its C++ had made of it.
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
