"""Keeps Ctrl-C, and exceptions of other signal handlers, from being lost while a tensor's memory is freed.

Python frees the memory in a callback, and drops exceptions that are raised there (it calls sys.unraisablehook). On a
GPU no Python code runs at that point, and Ctrl-C is raised in the program.
"""

import contextlib
import sys

from simgpu.storage import storage_map


@contextlib.contextmanager
def raised_again():
    """Raises such a signal again in the program, inside the `with`. Other hooks receive everything else."""
    before = sys.unraisablehook

    def hook(unraisable):
        if not storage_map.after_a_lost_interrupt(unraisable, __name__):
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before
