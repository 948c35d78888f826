"""Random numbers for operators on the simulated GPU, drawn from the generator that the code passes."""

from __future__ import annotations

import contextlib

import torch

from simgpu.device.streams import Generator


@contextlib.contextmanager
def of(machine, kwargs):
    """Makes the CPU draw from the generator that a call passes, else from the GPU's default generator.

    Yields the call's keyword arguments without the generator. Not all operators that draw accept a generator (dropout
    does not). So the CPU's default generator temporarily has the state of the GPU's, and its own state is restored
    afterwards.
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
