"""What is found out once for each operator, by its identity: PyTorch computes an OpOverload's hash in Python."""

from collections.abc import Callable
from functools import wraps


def once_for_each(function: Callable) -> Callable:
    """functools.cache for a function of one OpOverload. Operators live as long as the process; `forget` asks anew."""
    known = {}

    @wraps(function)
    def find(operator):
        found = known.get(id(operator))
        if found is None:
            found = known[id(operator)] = (function(operator), operator)  # the second keeps its identity from others
        return found[0]

    find.forget = known.clear  # pyright: ignore[reportAttributeAccessIssue]
    return find
