"""Serialises allocator calls: threads take a lock, and requests from within an allocator call wait in a queue.

PyTorch's allocator holds a lock, and no Python code runs while it is held. This one is written in Python, where the
garbage collector may run at any point and free tensors.
"""

import threading
from collections import deque
from collections.abc import Callable
from functools import wraps

from simgpu.allocator.caching import CachingAllocator
from simgpu.allocator.invalid_free import InvalidFree
from simgpu.allocator.out_of_memory import OutOfMemory
from simgpu.errors import NotModelledError, as_cuda_error
from simgpu.interrupts import between_operators, defers_signals, have_room
from simgpu.unmodeled import Unmodeled

WAITING = ("free", "empty_cache", "synchronize", "record_stream")
"""Methods that return nothing, so that they can wait until the current allocator call is done."""
FRAMES = 32
"""An upper bound of the Python frames that a request for memory needs."""


BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)
"""PyTorch's text (torch/cuda/__init__.py, _lazy_init)."""


class AllocatorLock:
    """Wraps an allocator's methods so that calls run one at a time. Ctrl-C waits until the call is done, too."""

    def __init__(self, allocator: CachingAllocator, unmodeled: Unmodeled) -> None:
        self.lock = threading.RLock()
        self._unmodeled = unmodeled
        self._read_settings = allocator.read_settings
        self.forked = False  # whether this process was forked from one that has used the GPU
        self._busy = False
        self._of_observer = False  # whether an observer raised the error
        self._waiting: deque[tuple[Callable, tuple]] = deque()
        for name in WAITING:
            setattr(allocator, name, defers_signals(self._alone(getattr(allocator, name), waits=True)))
        allocator.malloc = defers_signals(self._alone(allocator.malloc, waits=False))

    def outside(self, observer: Callable) -> Callable:
        """Wraps an out-of-memory observer, which PyTorch calls after the allocator is done.

        So the observer may call the allocator, and may raise.
        """

        @wraps(observer)
        def call(*args):
            self._busy, self._of_observer = False, True
            with between_operators():
                observer(*args)
            self._busy, self._of_observer = True, False

        return call

    def _alone(self, function: Callable, waits: bool) -> Callable:
        """Wraps an allocator method so that it runs alone.

        A call from within another one waits if `waits` is set, and raises NotModelledError otherwise.
        """
        lock = self.lock

        @wraps(function)
        def call(*args, **kwargs):
            with lock:
                if self._busy:
                    if waits:
                        return self._waiting.append((function, args))
                    raise NotModelledError(
                        "memory of the simulated GPU was asked for while its allocator was at work, by code that "
                        "Python ran just then: a __del__, a callback of the garbage collection, a signal's handler"
                    )
                if not waits:
                    if self.forked:
                        raise RuntimeError(BAD_FORK)
                    have_room(FRAMES)
                    self._read_settings()
                self._busy, self._of_observer = True, False
                try:
                    return function(*args, **kwargs)
                except (OutOfMemory, ValueError):
                    raise
                except InvalidFree as error:
                    raise as_cuda_error(error) from None
                except BaseException as error:
                    self._note(error)
                    raise
                finally:
                    self._busy = False
                    while self._waiting:
                        self._do_next()

        return call

    def _note(self, error: BaseException) -> None:
        """Records that an exception from a signal handler or a different thread interrupted an allocator call
        midway.
        """
        if not self._of_observer:
            self._unmodeled.add(
                f"{type(error).__name__} inside the allocator",
                "what it was doing then; enter a simulated GPU again for exact figures",
                lower_bound=False,
            )

    def _do_next(self) -> None:
        self._busy = True
        try:
            function, args = self._waiting.popleft()
            function(*args)
        finally:
            self._busy = False
