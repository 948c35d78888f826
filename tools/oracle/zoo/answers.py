"""Gives the oracle the values that a program asks for.

On the oracle every value is 0, so a program that decides by values goes another way than on a GPU. What the simulated
GPU answers, because it follows those values, is written down there (by the line that asks, in order) and given to the
same line on the oracle. Both then run the same operators, and their memory can be compared. The environment's
`VARIABLE` names the folder; without it nothing is changed.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from simgpu import machine
from simgpu.handlers import handler_of, handles

VARIABLE = "ZOO_ANSWERS"
ASKED = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "is_nonzero")


def path(name: str) -> Path | None:
    """Where the answers to a workload lie; None if they are not asked for."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) / f"{name}.answers.json" if folder else None


@contextmanager
def the_same(name: str) -> Iterator[None]:
    """Inside, the simulated GPU's answers are written down, and the oracle's are those."""
    file = path(name)
    if file is None:
        yield
        return
    simulated = machine.current() is not None
    log = _Log(simulated, {} if simulated or not file.exists() else json.loads(file.read_text()))
    with ExitStack() as stack:
        for kind in ASKED:
            stack.enter_context(patch.object(torch.Tensor, kind, log.asking(kind), create=True))
        try:
            yield
        finally:
            if simulated:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(log.given))


class _Log:
    """Answers by the line that asks for them."""

    def __init__(self, simulated: bool, given: dict[str, list]):
        self.simulated = simulated
        self.given: dict[str, list] = defaultdict(list, given)
        self.inside = False

    def asking(self, kind: str):
        """A method of torch.Tensor that asks for values, whose answers are noted or taken from the notes."""
        original = getattr(torch.Tensor, kind)

        def asked(tensor, *args, **kwargs):
            if self.inside:
                return original(tensor, *args, **kwargs)
            self.inside = True
            try:
                answer = original(tensor, *args, **kwargs)
            finally:
                self.inside = False
            frame = sys._getframe(1)
            line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {kind}"
            if self.simulated:
                self.given[line].append(answer)
                return answer
            known = self.given[line].pop(0) if self.given.get(line) else answer
            return answer if isinstance(known, float) and math.isnan(known) else known

        if self.simulated:  # C++ hands a mode what stands under the method's name
            handler = handler_of(original)
            handles(asked)(lambda mode, function, args, kwargs: handler(mode, original, args, kwargs))
        return asked
