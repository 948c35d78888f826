"""Serialises allocator calls: threads take a lock, and requests from within an allocator call wait in a queue.

PyTorch's allocator holds a lock, and no Python code runs while it is held. This one is written in Python, where the
garbage collector may run at any point and free tensors.
"""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from simgpu.allocator.caching import CachingAllocator
from simgpu.allocator.out_of_memory import InvalidFree, OutOfMemory
from simgpu.allocator.physical import Device
from simgpu.errors import NotModelledError, as_cuda_error
from simgpu.interrupts import between_operators, defers_signals, have_room
from simgpu.unmodeled import Unmodeled

FRAMES = 32
"""An upper bound of the Python frames that a request for memory needs."""


BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)
"""PyTorch's text (torch/cuda/__init__.py, _lazy_init)."""


class AllocatorLock:
    """Lets calls of one allocator run one at a time, and keeps those that wait for the current one."""

    def __init__(self, unmodeled: Unmodeled) -> None:
        self.lock = threading.RLock()
        self.forked = False  # whether this process was forked from one that has used the GPU
        self._unmodeled = unmodeled
        self._busy = False
        self._of_observer = False  # whether an observer raised the error
        self._waiting: deque[Callable] = deque()

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

    def _run_waiting(self) -> None:
        self._busy = False
        while self._waiting:
            self._busy = True
            try:
                self._waiting.popleft()()
            finally:
                self._busy = False


def _alone(method: Callable, waits: bool) -> Any:
    """Returns a method of the allocator that runs alone.

    A call from inside the allocator waits if `waits` is set, and raises NotModelledError otherwise.
    """

    @defers_signals
    @wraps(method)
    def call(allocator: "LockedAllocator", *args, **kwargs):
        turn = allocator.turn
        with turn.lock:
            if turn._busy:
                if waits:
                    return turn._waiting.append(partial(method, allocator, *args, **kwargs))
                raise NotModelledError(
                    "memory of the simulated GPU was asked for while its allocator was at work, by code that "
                    "Python ran just then: a __del__, a callback of the garbage collection, a signal's handler"
                )
            if not waits:
                if turn.forked:
                    raise RuntimeError(BAD_FORK)
                have_room(FRAMES)
                allocator.read_settings()
            turn._busy, turn._of_observer = True, False
            try:
                return method(allocator, *args, **kwargs)
            except (OutOfMemory, ValueError):
                raise
            except InvalidFree as error:
                raise as_cuda_error(error) from None
            except BaseException as error:
                turn._note(error)
                raise
            finally:
                turn._run_waiting()

    return call


class LockedAllocator(CachingAllocator):
    """The allocator of a simulated GPU, whose calls run one at a time. Ctrl-C waits until a call is done, too."""

    def __init__(self, device: Device, turn: AllocatorLock, **options: Any) -> None:
        super().__init__(device, **options)
        self.turn = turn

    malloc = _alone(CachingAllocator.malloc, waits=False)
    # These return nothing, so they can wait until the current call is done.
    free = _alone(CachingAllocator.free, waits=True)
    empty_cache = _alone(CachingAllocator.empty_cache, waits=True)
    synchronize = _alone(CachingAllocator.synchronize, waits=True)
    record_stream = _alone(CachingAllocator.record_stream, waits=True)
