"""Makes the Python functions that DTensor's C++ calls per operator see the GPU, as they would see a real one.

PyTorch calls these functions while no function mode is on. For each operator these are `OpDispatcher`'s own methods,
and for some a handler (torch/distributed/tensor/_dispatch.py, `_custom_op_handlers`). loss_parallel and context
parallelism add handlers of their own.
"""

from collections.abc import Callable

METHODS = ("dispatch", "_dispatch_get_local_results_slow_path")
HANDLERS = "_custom_op_handlers"


def patch(patches, seen: Callable[[Callable], Callable]) -> None:
    """Replaces them in DTensor. `seen` wraps a function so that it sees the GPU that is on."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dispatch import OpDispatcher

    for name in METHODS:
        method = vars(OpDispatcher).get(name)
        if method is not None:
            patches.apply(OpDispatcher, name, seen(method))
    before = getattr(DTensor._op_dispatcher, HANDLERS, None)
    if isinstance(before, dict):
        patches.apply(OpDispatcher, HANDLERS, _property(before, seen), new="each instance has it, and not the class")


class _Handlers(dict):
    """Handlers by operator, wrapped when they are added, because C++ reads a dictionary without calling its methods."""

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
    """Returns the replacement for the attribute of PyTorch's only dispatcher while a GPU is on."""
    kept = [_Handlers(handlers, seen)]

    def assigned(_, others):
        kept[0] = _Handlers(others, seen)

    return property(lambda _: kept[0], assigned)
