"""Signals wait while a simulated GPU is entered or left and while it runs one operator.

So an interrupt finds torch in one state or the other, and an operator done or not begun, as on a real GPU, where
PyTorch's C++ cannot be interrupted either.
"""

import _signal  # pyright: ignore[reportMissingImports]  # what `signal` wraps, without its slow enums
import _thread
import signal
import threading
from functools import wraps

_SIGNALS = tuple(int(number) for number in signal.valid_signals())


class Deferred:
    """Inside the `with`, handlers of signals that are Python functions wait; the first signal is handled at the end.

    Ctrl-C is such a signal: KeyboardInterrupt is raised when the `with` is left. Python runs handlers in the main
    thread only, so that elsewhere there is nothing to do.
    """

    def __init__(self):
        self._handlers = {}
        self._came = None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            try:
                for number in _SIGNALS:
                    handler = _signal.getsignal(number)
                    if callable(handler):
                        self._handlers[number] = handler
                        _signal.signal(number, self._note)
            except BaseException:
                self._restore()
                raise
        return self

    def __exit__(self, *error):
        try:
            self._restore()
        except BaseException:
            self._restore()
            raise
        if self._came is not None:
            number, frame = self._came
            self._handlers[number](number, frame)

    def _note(self, number, frame):
        self._came = self._came or (number, frame)

    def _restore(self):
        for number, handler in self._handlers.items():
            _signal.signal(number, handler)


_came: list = []  # Ctrl-C, while `uninterrupted` ran: its frame


def _note(number, frame):
    _came.append(frame)


def uninterrupted(function, *args, **kwargs):
    """What `function` returns; Ctrl-C that comes while it runs is handled after it.

    Only Ctrl-C (SIGINT), since this is done for each operator, and Python's `signal` is slow. It takes under a
    microsecond.
    """
    handler = _signal.getsignal(_signal.SIGINT)
    if handler is _note or not callable(handler) or threading.get_ident() != threading.main_thread().ident:
        return function(*args, **kwargs)
    _came.clear()
    _signal.signal(_signal.SIGINT, _note)
    try:
        return function(*args, **kwargs)
    finally:
        _signal.signal(_signal.SIGINT, handler)
        if _came:
            handler(signal.SIGINT, _came.pop())


def in_one_piece(function):
    """A function that Ctrl-C does not interrupt: see `uninterrupted`."""

    @wraps(function)
    def call(*args, **kwargs):
        return uninterrupted(function, *args, **kwargs)

    return call


def raise_later() -> None:
    """Makes Ctrl-C come once more, where the main thread is by then: it came where Python cannot raise anything."""
    _thread.start_new_thread(_thread.interrupt_main, ())
