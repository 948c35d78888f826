"""Threads that are started while a simulated GPU is on see it too, as they see a real one.

Modes belong to a thread, and PyTorch does not hand them on. So a thread that is started inside enters those of the GPU
before it runs, and so does what is handed to a pool's thread, which may be older. A thread that somebody started before
and that takes its work from a queue of its own is not reached: to it a simulated tensor is PyTorch's meta tensor, and
new ones on "cuda" are refused (tensors/unseen.py).
"""

import _thread
import concurrent.futures
import multiprocessing.pool
import threading
from collections.abc import Callable
from functools import wraps

from simgpu.composites import autocast
from simgpu.machine import Machine
from simgpu.modes import stacks
from simgpu.patches import Patches


def patch(patches: Patches, machine: Machine, modes: tuple) -> None:
    """Has the threads that are started here, and what is submitted to pools here, run with `modes` on."""
    patches.apply(threading.Thread, "start", _started(threading.Thread.start, machine, modes))
    pool = concurrent.futures.ThreadPoolExecutor
    patches.apply(pool, "submit", _submitted(pool.submit, machine, modes))
    patches.apply(_thread, "start_new_thread", _begun(_thread.start_new_thread, machine, modes))
    processes = multiprocessing.pool.Pool  # a ThreadPool is one too
    for name in ("_map_async", "apply_async", "imap", "imap_unordered"):
        patches.apply(processes, name, _handed(getattr(processes, name), machine, modes))


def _on_here(machine: Machine, modes: tuple) -> bool:
    """Whether the GPU is on in the thread that asks."""
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
    """threading.Thread.start, of which `start` is Python's."""

    @wraps(start)
    def started(thread):
        if _on_here(machine, modes):
            run = _inside(thread.run, machine, modes)

            def run_once():
                vars(thread).pop("run", None)  # it would keep the thread alive; of nested GPUs the outer one was first
                run()

            thread.run = run_once
        return start(thread)

    return started


def _submitted(submit: Callable, machine: Machine, modes: tuple) -> Callable:
    """concurrent.futures.ThreadPoolExecutor.submit, of which `submit` is Python's."""

    @wraps(submit)
    def submitted(pool, function, /, *args, **kwargs):
        if _on_here(machine, modes):
            function = _inside(function, machine, modes)
        return submit(pool, function, *args, **kwargs)

    return submitted


def _begun(begin: Callable, machine: Machine, modes: tuple) -> Callable:
    """_thread.start_new_thread, of which `begin` is Python's."""

    @wraps(begin)
    def begun(function, *rest):
        return begin(_inside(function, machine, modes) if _on_here(machine, modes) else function, *rest)

    return begun


def _handed(hand: Callable, machine: Machine, modes: tuple) -> Callable:
    """A method of multiprocessing.pool.Pool that takes a function, `hand`: a pool of threads may be older."""

    @wraps(hand)
    def handed(pool, func, *args, **kwargs):
        if isinstance(pool, multiprocessing.pool.ThreadPool) and _on_here(machine, modes):
            func = _inside(func, machine, modes)
        return hand(pool, func, *args, **kwargs)

    return handed
