"""The errors of the simulated GPU that a real one does not have."""


class NotModelledError(NotImplementedError):
    """Something of CUDA that the simulated GPU does not model; the message names it."""


class NoValueError(RuntimeError):
    """A value was asked of a simulated tensor, which has none, and NaN would not do."""
