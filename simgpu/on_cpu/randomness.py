"""Random numbers of operators that run on the simulated GPU: those of the generator that the code names."""

from __future__ import annotations

import contextlib

import torch

from simgpu.streams import Generator


@contextlib.contextmanager
def of(machine, kwargs):
    """Inside, the CPU draws from the generator that a call names, else from the GPU's own. Gives the call's named
    arguments, in which a generator is one that the CPU knows.

    Not all operators that draw take a generator (dropout does not), so the CPU's own stands in for the GPU's, and gets
    back what it was.
    """
    given = kwargs.get("generator") or machine.named_generator
    generator = given if isinstance(given, Generator) else machine.generator
    default = torch.default_generator
    before = default.get_state()
    default.set_state(generator.numbers())
    try:
        yield {**kwargs, "generator": None} if "generator" in kwargs else kwargs
    finally:
        generator.drawn(default.get_state())
        default.set_state(before)
