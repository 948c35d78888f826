"""Caches the shapes of results, for repeated calls of an operator that agree in everything that matters.

PyTorch's Python meta functions take a hundred times as long as those in C++, and return the same each time. The shapes,
strides and dtypes of results follow from those of the arguments and from the other arguments. So a result is recorded,
and recreated without calling the function. Only safe cases are cached: an operator that writes nothing, arguments that
are tensors without values, numbers and the like, and results that are separate tensors, each in a storage of exactly
its size.
"""

from collections.abc import Callable

import torch

from simgpu.op_info.per_op_cache import per_op_cache

LIMIT = 20_000  # results; beyond that the cache is cleared, for programs whose shapes never repeat

_META = torch.device("meta")
_keys = torch._C._dispatch_keys
_NUMBERS = {bool, int, float, complex, str, type(None), torch.dtype, torch.layout, torch.device, torch.memory_format}
_TAKES_ANY = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}

_made: dict[tuple, Callable | None] = {}


class _DiffersError(Exception):
    """Raised for an argument or a result that cannot be cached."""


def forget() -> None:
    """Clears the cache, because a different simulated GPU may give different shapes."""
    _made.clear()


@per_op_cache
def _may_be_remembered(operator) -> bool:
    """Returns whether an operator makes new results from shapes alone."""
    schema = operator._schema
    if not schema.returns or not _TAKES_ANY.isdisjoint(operator.tags):
        return False
    return all(one.alias_info is None for one in (*schema.arguments, *schema.returns))


def _signature(value):
    """Returns everything in one argument that a result's shape may depend on, hashable."""
    kind = type(value)
    if kind in _NUMBERS:
        return kind, value
    if isinstance(value, torch.Tensor):
        if not value.is_meta or value.layout is not torch.strided:
            raise _DiffersError
        # The keys show a tensor's other properties: lazily conjugated or negated, nested, made in inference mode.
        return value.shape, value.stride(), value.dtype, value.storage_offset(), _keys(value).raw_repr()
    if kind is list or kind is tuple:
        return kind, *map(_signature, value)
    raise _DiffersError


def _of_one(found, taken: set):
    """Returns a function that recreates the result `found`; `taken` holds storages of other tensors."""
    if found is None or type(found) in (int, bool, float):
        return lambda: found
    if type(found) is not torch.Tensor or found.layout is not torch.strided or found.storage_offset():
        raise _DiffersError
    storage = found.untyped_storage()
    if id(storage) in taken:
        raise _DiffersError
    taken.add(id(storage))
    shape, strides, dtype = found.shape, found.stride(), found.dtype

    def make():
        return torch.empty_strided(shape, strides, dtype=dtype, device=_META)

    like = make()
    if like.untyped_storage().nbytes() != storage.nbytes() or _keys(like).raw_repr() != _keys(found).raw_repr():
        raise _DiffersError
    return make


def _of_all(found, taken: set):
    """Returns a function that recreates all results of an operator: one, or a tuple or list of them."""
    kind = type(found)
    if kind is not tuple and kind is not list:
        return _of_one(found, taken)
    makers = [_of_one(one, taken) for one in found]
    return lambda: kind([make() for make in makers])


def _storages(arguments) -> set:
    """Returns the arguments' storages, by the identity of their Python objects."""
    found = set()
    for one in arguments:
        if isinstance(one, torch.Tensor):
            found.add(id(one.untyped_storage()))
        elif isinstance(one, (list, tuple)):
            found |= _storages(one)
    return found


def run(operator, args, kwargs):
    """Returns operator(*args, **kwargs) on meta tensors, from the cache if possible."""
    # some operators check this and then raise
    if not _may_be_remembered(operator) or torch._C._get_deterministic_algorithms():
        return operator(*args, **kwargs)
    try:
        signature = (id(operator), torch.get_default_dtype(), *map(_signature, args))
        if kwargs:
            signature += tuple((name, _signature(value)) for name, value in kwargs.items())
        make = _made.get(signature, operator)
    except (_DiffersError, TypeError):
        return operator(*args, **kwargs)
    if make is operator:  # a new signature
        result = operator(*args, **kwargs)
        if len(_made) >= LIMIT:
            _made.clear()
        try:
            _made[signature] = _of_all(result, _storages((*args, *kwargs.values())))
        except _DiffersError:
            _made[signature] = None
        return result
    return operator(*args, **kwargs) if make is None else make()
