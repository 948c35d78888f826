"""Caches results per operator by identity, because PyTorch computes an OpOverload's hash in Python."""

from collections.abc import Callable
from functools import wraps


def per_op_cache(function: Callable) -> Callable:
    """Wraps a function of one OpOverload like functools.cache.

    Operators live as long as the process. `forget` clears the cache.
    """
    known = {}

    @wraps(function)
    def find(operator):
        found = known.get(id(operator))
        if found is None:
            found = known[id(operator)] = (function(operator), operator)  # the operator is stored to reserve its id
        return found[0]

    find.forget = known.clear  # pyright: ignore[reportAttributeAccessIssue]
    return find
