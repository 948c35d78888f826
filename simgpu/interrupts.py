"""Signals wait while a simulated GPU is entered or left, so that an interrupt finds torch in one state or the other."""

import _signal  # pyright: ignore[reportMissingImports]  # what `signal` wraps, without its slow enums
import signal
import threading

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
