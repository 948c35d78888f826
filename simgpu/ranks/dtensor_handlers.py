"""What DTensor's C++ calls in Python of an operator: there the GPU is seen too, as it is on one.

PyTorch calls these functions where no function mode is on: of each operator, `OpDispatcher`'s own methods, and of some,
a handler of its own (torch/distributed/tensor/_dispatch.py, `_custom_op_handlers`), to which loss_parallel and context
parallel add theirs.
"""

from collections.abc import Callable

METHODS = ("dispatch", "_dispatch_get_local_results_slow_path")
HANDLERS = "_custom_op_handlers"


def patch(patches, seen: Callable[[Callable], Callable]) -> None:
    """Puts it into DTensor. `seen`: makes a function see the GPU that is on."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dispatch import OpDispatcher

    for name in METHODS:
        method = vars(OpDispatcher).get(name)
        if method is not None:
            patches.apply(OpDispatcher, name, seen(method))
    before = getattr(DTensor._op_dispatcher, HANDLERS, None)
    if isinstance(before, dict):
        patches.apply(OpDispatcher, HANDLERS, _property(before, seen))


class _Handlers(dict):
    """Handlers by operator. They are wrapped when they come in: C++ reads a dictionary without calling its methods."""

    def __init__(self, handlers: dict, seen: Callable):
        super().__init__()
        self.seen = seen
        self.update(handlers)

    def __setitem__(self, operator, handler):
        if not hasattr(handler, "sees_the_gpu"):
            handler = self.seen(handler)
            handler.sees_the_gpu = True
        super().__setitem__(operator, handler)

    def update(self, *given, **named):
        for operator, handler in dict(*given, **named).items():
            self[operator] = handler


def _property(handlers: dict, seen: Callable) -> property:
    """The attribute, of PyTorch's only dispatcher, as it is while a GPU is on."""
    kept = [_Handlers(handlers, seen)]

    def assigned(_, others):
        kept[0] = _Handlers(others, seen)

    return property(lambda _: kept[0], assigned)
