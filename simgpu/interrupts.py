"""Defers signals while a simulated GPU is entered or left, and while it runs one operator.

So an interrupt finds torch fully in one state or the other, and an operator either done or not begun. On a real GPU
PyTorch's C++ cannot be interrupted either.
"""

import _signal  # pyright: ignore[reportMissingImports]  # what `signal` wraps, without its slow enums
import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial, wraps
from types import FrameType

_SIGNALS = tuple(int(number) for number in signal.valid_signals())


class Deferred:
    """Defers Python signal handlers until the end of the `with`, and then handles the first signal that arrived.

    Ctrl-C is such a signal: KeyboardInterrupt is raised when the `with` is left. Python runs handlers only in the main
    thread, so in other threads this does nothing.
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


_getsignal, _set_signal = _signal.getsignal, _signal.signal
_numbers: tuple[int, ...] = (int(signal.SIGINT),)
_handlers: dict = {}  # original handlers of the signals, while `run_deferring_signals` runs a function
_came: list = []  # number and frame of the signals that arrived during that time
_outside: Callable = contextlib.nullcontext


def _note(number, frame):
    _came.append((number, frame))


@contextlib.contextmanager
def other_handlers_wait(outside: Callable):
    """Extends `run_deferring_signals` to all signals with Python handlers, inside the `with`.

    These handlers then run inside `outside()`, a context manager, where they see what they would see between two
    operators.
    """
    global _outside
    before, _outside = (signal.signal, _outside), outside
    signal.signal = _heard(signal.signal)
    _look()
    try:
        yield
    finally:
        signal.signal, _outside = before
        _look()


def _heard(set_handler: Callable) -> Callable:
    """Wraps `set_handler`, Python's signal.signal, so that a changed handler is noticed."""

    @wraps(set_handler)
    def call(number, handler):
        before = set_handler(number, handler)
        _look()
        return before

    return call


def _look() -> None:
    global _numbers
    others = (number for number in _SIGNALS if number != signal.SIGINT and callable(_signal.getsignal(number)))
    _numbers = (int(signal.SIGINT), *others)


def run_deferring_signals(function, *args, **kwargs):
    """Calls `function` and returns its result; handlers of signals that arrive during the call run after it.

    This applies to Ctrl-C above all. It costs about a microsecond, and half of one more per further signal with a
    handler.
    """
    if _handlers or _thread.get_ident() != threading.main_thread().ident:
        return function(*args, **kwargs)
    try:
        for number in _numbers:
            handler = _getsignal(number)
            if callable(handler):
                _handlers[number] = handler
                _set_signal(number, _note)
        return function(*args, **kwargs)
    finally:
        try:
            for number, handler in _handlers.items():
                _set_signal(number, handler)
            _handlers.clear()
        except BaseException:  # a signal that arrived after its handler was restored and before the next one's was
            _put_back()
            raise
        if _came:
            _handle()


def _put_back() -> None:
    for number, handler in _handlers.items():
        _signal.signal(number, handler)
    _handlers.clear()


def between_operators():
    """Returns a context manager for user code that runs in the middle of an operator, so that it sees what it sees
    outside.
    """
    return _outside()


def _handle() -> None:
    """Runs the handlers of the signals that arrived; if one raises, the remaining ones run after the next operator."""
    with between_operators():
        while _came:
            number, frame = _came.pop(0)
            handler = _signal.getsignal(number)
            if callable(handler):
                handler(number, frame)


def defers_signals(function):
    """Wraps a function so that Ctrl-C does not interrupt it (see `run_deferring_signals`)."""

    @wraps(function)
    def call(*args, **kwargs):
        if _handlers:  # inside another such function
            return function(*args, **kwargs)
        return run_deferring_signals(function, *args, **kwargs)

    return call


def raise_later(error: BaseException, outside: tuple[str, ...]) -> bool:
    """Sends a signal again if its handler raised `error`; returns whether it did.

    It is for exceptions that a handler raises where Python cannot propagate them: in the callback of a weak reference,
    or in a function that is called from one. The signal is sent once no function of the modules `outside` runs in the
    main thread.
    """
    number = _signal_of(error)
    if number is not None:
        _thread.start_new_thread(_send, (number, outside))
    return number is not None


def _send(number: int, outside: tuple[str, ...]) -> None:
    main = threading.main_thread().ident or 0
    while any(name in outside for name in _modules(sys._current_frames().get(main))):
        time.sleep(1e-4)
    _thread.interrupt_main(number)  # pyright: ignore[reportArgumentType]  # real-time signals have no name in Signals


def _modules(frame: FrameType | None) -> Iterator[str]:
    """Yields the modules of the functions that run in a thread, from its innermost frame."""
    while frame is not None:
        yield frame.f_globals.get("__name__", "")
        frame = frame.f_back


def _signal_of(error: BaseException) -> int | None:
    """Returns the signal whose handler raised the error, or None.

    It is SIGINT for KeyboardInterrupt, and otherwise the signal whose handler is in the traceback.
    """
    if isinstance(error, KeyboardInterrupt):
        return int(signal.SIGINT)
    codes, trace = set(), error.__traceback__
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    return next((number for number in _SIGNALS if _code(_signal.getsignal(number)) in codes), None)


def _code(handler: object):
    """Returns the code of a function, a method, a partial of one, or a callable object; None if it has none."""
    while isinstance(handler, partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)


def have_room(frames: int) -> None:
    """Raises RecursionError if Python's recursion limit is less than `frames` frames away.

    So the error is raised here, and not in the middle of an operation.
    """
    if _ONE_LIMIT:
        isinstance(None, _nested(frames))
    elif frames:
        have_room(frames - 1)


# one limit for calls of Python and of C, and C's are quicker (Py_EnterRecursiveCall)
_ONE_LIMIT = sys.version_info < (3, 12)


@cache
def _nested(levels: int) -> tuple:
    """Returns a tuple nested `levels` deep; `isinstance` recurses once per level (object_recursive_isinstance,
    abstract.c).
    """
    kinds = ()
    for _ in range(levels):
        kinds = (kinds,)
    return kinds
