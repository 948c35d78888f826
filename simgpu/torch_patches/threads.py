"""Makes threads that are started while a simulated GPU is on see it too, as they would see a real one.

Modes belong to a thread, and PyTorch does not pass them on. So a thread that is started inside enters the GPU's modes
before it runs, and so does a task for a pool's thread, which may be older. A thread that was started earlier and takes
its work from a queue of its own is not reached. For it, a simulated tensor is PyTorch's meta tensor, and new ones on
"cuda" are refused (dispatch/no_mode_guard.py).
"""

import _thread
import concurrent.futures
import multiprocessing.pool
import threading
from collections.abc import Callable
from functools import wraps

from simgpu.device.machine import Machine
from simgpu.dispatch import stacks
from simgpu.ops import autocast
from simgpu.patches import Patches


def patch(patches: Patches, machine: Machine, modes: tuple) -> None:
    """Makes threads that are started here, and tasks that are submitted to pools here, run with `modes` on."""
    patches.apply(threading.Thread, "start", _started(threading.Thread.start, machine, modes))
    pool = concurrent.futures.ThreadPoolExecutor
    patches.apply(pool, "submit", _submitted(pool.submit, machine, modes))
    patches.apply(_thread, "start_new_thread", _begun(_thread.start_new_thread, machine, modes))
    processes = multiprocessing.pool.Pool  # includes ThreadPool
    for name in ("_map_async", "apply_async", "imap", "imap_unordered"):
        patches.apply(processes, name, _handed(getattr(processes, name), machine, modes))


def _on_here(machine: Machine, modes: tuple) -> bool:
    """Returns whether the GPU is on in the calling thread."""
    return machine.active and modes[-1] in stacks.functions()


def _inside(run: Callable, machine: Machine, modes: tuple) -> Callable:
    @wraps(run)
    def inside(*args, **kwargs):
        if not machine.active:
            return run(*args, **kwargs)
        with stacks.also_here(modes):
            autocast.start()
            try:
                return run(*args, **kwargs)
            finally:
                autocast.switch(False)

    return inside


def _started(start: Callable, machine: Machine, modes: tuple) -> Callable:
    """Wraps threading.Thread.start (`start`)."""

    @wraps(start)
    def started(thread):
        if _on_here(machine, modes):
            run = _inside(thread.run, machine, modes)

            def run_once():
                # it would keep the thread alive; with nested GPUs the outer one was first
                vars(thread).pop("run", None)
                run()

            thread.run = run_once
        return start(thread)

    return started


def _submitted(submit: Callable, machine: Machine, modes: tuple) -> Callable:
    """Wraps concurrent.futures.ThreadPoolExecutor.submit (`submit`)."""

    @wraps(submit)
    def submitted(pool, function, /, *args, **kwargs):
        if _on_here(machine, modes):
            function = _inside(function, machine, modes)
        return submit(pool, function, *args, **kwargs)

    return submitted


def _begun(begin: Callable, machine: Machine, modes: tuple) -> Callable:
    """Wraps _thread.start_new_thread (`begin`)."""

    @wraps(begin)
    def begun(function, *rest):
        return begin(_inside(function, machine, modes) if _on_here(machine, modes) else function, *rest)

    return begun


def _handed(hand: Callable, machine: Machine, modes: tuple) -> Callable:
    """Wraps a method of multiprocessing.pool.Pool that takes a function (`hand`), because a pool of threads may be
    older.
    """

    @wraps(hand)
    def handed(pool, func, *args, **kwargs):
        if isinstance(pool, multiprocessing.pool.ThreadPool) and _on_here(machine, modes):
            func = _inside(func, machine, modes)
        return hand(pool, func, *args, **kwargs)

    return handed
