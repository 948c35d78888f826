"""Signals wait while a simulated GPU is entered or left and while it runs one operator.

So an interrupt finds torch in one state or the other, and an operator done or not begun, as on a real GPU, where
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


_getsignal, _set_signal = _signal.getsignal, _signal.signal
_numbers: tuple[int, ...] = (int(signal.SIGINT),)
_handlers: dict = {}  # of the signals, while `uninterrupted` runs something: their own
_came: list = []  # meanwhile: number and frame of those that came
_outside: Callable = contextlib.nullcontext


def _note(number, frame):
    _came.append((number, frame))


@contextlib.contextmanager
def other_handlers_wait(outside: Callable):
    """Inside the `with`, `uninterrupted` is for all signals whose handlers are Python functions, and these run inside
    `outside()`, a `with` of its own: where they see what they would see between two operators."""
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
    """signal.signal, of which `set_handler` is Python's."""

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


def uninterrupted(function, *args, **kwargs):
    """What `function` returns; the handlers of signals that come while it runs, Ctrl-C's above all, run after it.

    It takes about a microsecond, and half of one more for each signal besides Ctrl-C's that has a handler.
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
        except BaseException:  # a signal that came when its handler was back, and the next one's was not yet
            _put_back()
            raise
        if _came:
            _handle()


def _put_back() -> None:
    for number, handler in _handlers.items():
        _signal.signal(number, handler)
    _handlers.clear()


def between_operators():
    """A `with` inside which code of the user's that runs in the middle of an operator sees what it sees outside."""
    return _outside()


def _handle() -> None:
    """Runs the handlers of the signals that came; if one raises, those after it run after the next operator."""
    with between_operators():
        while _came:
            number, frame = _came.pop(0)
            handler = _signal.getsignal(number)
            if callable(handler):
                handler(number, frame)


def in_one_piece(function):
    """A function that Ctrl-C does not interrupt: see `uninterrupted`."""

    @wraps(function)
    def call(*args, **kwargs):
        if _handlers:  # inside another
            return function(*args, **kwargs)
        return uninterrupted(function, *args, **kwargs)

    return call


def raise_later(error: BaseException, outside: tuple[str, ...]) -> bool:
    """Makes a signal come once more if its handler raised `error`; whether it did.

    For what a handler raises where Python cannot raise anything: in the callback of a weak reference, or in what is
    told of it. It comes when no function of the modules `outside` runs in the main thread any more.
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
    """The modules of the functions that run in a thread, from its innermost frame."""
    while frame is not None:
        yield frame.f_globals.get("__name__", "")
        frame = frame.f_back


def _signal_of(error: BaseException) -> int | None:
    """The signal whose handler raised: Ctrl-C's for KeyboardInterrupt, else that whose function is in the traceback."""
    if isinstance(error, KeyboardInterrupt):
        return int(signal.SIGINT)
    codes, trace = set(), error.__traceback__
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    return next((number for number in _SIGNALS if _code(_signal.getsignal(number)) in codes), None)


def _code(handler: object):
    """The code of a function, a method, a partial of them or an object that is called; None of what has none."""
    while isinstance(handler, partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)


def have_room(frames: int) -> None:
    """RecursionError if Python's recursion limit is nearer than so many frames: here, and not in the middle."""
    if _ONE_LIMIT:
        isinstance(None, _nested(frames))
    elif frames:
        have_room(frames - 1)


_ONE_LIMIT = sys.version_info < (3, 12)  # for calls of Python and of C, which are quicker (Py_EnterRecursiveCall)


@cache
def _nested(levels: int) -> tuple:
    """A tuple in a tuple, and so on: for each, `isinstance` calls itself (object_recursive_isinstance, abstract.c)."""
    kinds = ()
    for _ in range(levels):
        kinds = (kinds,)
    return kinds
