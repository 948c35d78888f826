"""The registry of PyTorch functions that the function mode answers in its own way on the simulated GPU."""

_handlers = {}


def handles(*functions):
    """Registers what happens instead of these PyTorch functions: handler(mode, function, args, kwargs) -> result.

    `mode` is the FunctionMode, off while the handler runs; `mode.dispatch.machine` is the GPU. Attribute getters are
    named by their wrapper: `torch.Tensor.device.__get__`.
    """

    def register(handler):
        for function in functions:
            if function in _handlers:
                raise ValueError(f"two handlers for {function}")
            _handlers[function] = handler
        return handler

    return register


def handler_of(function):
    """The handler of a PyTorch function, or None."""
    return _handlers.get(function)
