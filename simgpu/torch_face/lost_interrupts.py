"""Ctrl-C, or what another signal's handler raises, is not lost where it comes while a tensor's memory is freed.

Python frees it in a callback, and drops what is raised in one (sys.unraisablehook is told). On a GPU nothing of Python
runs there, and Ctrl-C is raised in the program.
"""

import contextlib
import sys

from simgpu.tensors import residence


@contextlib.contextmanager
def raised_again():
    """Inside, such a signal comes again, in the program. Other people's hooks see everything else."""
    before = sys.unraisablehook

    def hook(unraisable):
        if not residence.after_a_lost_interrupt(unraisable, __name__):
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before
