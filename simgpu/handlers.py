"""Registers handlers for PyTorch functions that the function mode replaces on the simulated GPU."""

_handlers = {}


def handles(*functions):
    """Registers a handler to be called in place of these functions: handler(mode, function, args, kwargs) -> result.

    `mode` is the FunctionMode, which is off while the handler runs, and `mode.dispatch.machine` is the GPU. Attribute
    getters are named by their wrapper: `torch.Tensor.device.__get__`. Raises ValueError if a function already has a
    handler.
    """

    def register(handler):
        for function in functions:
            if function in _handlers:
                raise ValueError(f"two handlers for {function}")
            _handlers[function] = handler
        return handler

    return register


def handler_of(function):
    """Returns the handler of a PyTorch function, or None."""
    return _handlers.get(function)
