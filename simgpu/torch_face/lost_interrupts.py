"""Ctrl-C that comes while the memory of a tensor is freed is not lost.

Python frees it in a callback, and drops what is raised in one (sys.unraisablehook is told). On a GPU nothing of Python
runs there, and Ctrl-C is raised in the program.
"""

import contextlib
import sys

from simgpu.tensors import residence


@contextlib.contextmanager
def raised_again():
    """Inside, such a Ctrl-C is raised again, in the program. Other people's hooks see everything else."""
    before = sys.unraisablehook

    def hook(unraisable):
        if not residence.after_a_lost_interrupt(unraisable):
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before
