"""Gives the oracle the values that a program asks for.

On the oracle every value is 0, so a program that decides by values goes another way than on a GPU. What the simulated
GPU answers, because it follows those values, is written down there (by the line that asks, in order) and given to the
same line on the oracle. What operators read inside themselves, such as how much a mask selects, is written down in
order, and the stub of the CUDA runtime gives it to the operators there. Both then run the same operators, and their
memory can be compared. The environment's `VARIABLE` names the folder; without it nothing is changed.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch.nn.parameter import UninitializedTensorMixin, is_lazy

import simgpu
from simgpu.device import machine
from simgpu.dispatch import unknown_sizes, value_access
from simgpu.dispatch.dispatch_mode import DispatchMode
from simgpu.errors import NoValueError
from simgpu.handlers import handler_of, handles
from simgpu.storage import storage_map, values

VARIABLE = "ZOO_ANSWERS"
ASKED = (
    *((torch.Tensor, name) for name in ("__bool__", "__int__", "__float__", "__index__", "__contains__", "item")),
    *((torch.Tensor, name) for name in ("tolist", "is_nonzero", "equal", "allclose", "__format__")),
    *((torch, name) for name in ("is_nonzero", "equal", "allclose")),
)
COPIED = ((torch.Tensor, "cpu"), (torch.Tensor, "to"))  # small ones, to the host, where they have values
MOST_COPIED = 4096  # elements
ROWS = {"nonzero", "repeat_interleave", "unique_dim", "unique_consecutive", "_unique", "_unique2"}  # CUDA counts them
SIMULATOR = str(Path(simgpu.__file__).parent)
_list_of = torch.Tensor.tolist  # unwatched
AS_FLOAT = {torch.float64: "<d", torch.float32: "<f", torch.float16: "<e"}


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
    known = {} if simulated or not file.exists() else json.loads(file.read_text())
    log = _Log(simulated, known.get("lines", {}))
    with ExitStack() as stack:
        for owner, kind in ASKED:
            stack.enter_context(patch.object(owner, kind, log.asking(owner, kind), create=True))
        for owner, kind in COPIED:
            stack.enter_context(patch.object(owner, kind, log.copying(owner, kind)))
        stack.enter_context(patch.object(torch, "ctc_loss", log.lengths(torch.ctc_loss)))
        if simulated:
            for owner, name in ((unknown_sizes, "of_known_size"), (DispatchMode, "scalar")):
                stack.enter_context(patch.object(owner, name, log.reading(getattr(owner, name))))
        else:
            log.stub = _stub_that_reads(known.get("reads", []))
        try:
            yield
        finally:
            if simulated:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps({"lines": log.given, "reads": log.reads}))


def _stub_that_reads(values: list[int]):
    """The oracle's CUDA runtime, which gives operators these values. RuntimeError if it is too old to."""
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")  # pyright: ignore[reportOptionalMemberAccess]
    if not hasattr(runtime, "mock_reads"):
        raise RuntimeError("the stub libraries are older than this: python -m tools.oracle build")
    runtime.mock_reads((ctypes.c_uint64 * len(values))(*values), ctypes.c_size_t(len(values)))
    return runtime


def as_read(value: float, dtype: torch.dtype) -> int:
    """A value as the 8 bytes that the host reads, the first ones first; 0 for one that is not known (NaN)."""
    if not dtype.is_floating_point:
        return int(value) & (2**64 - 1)
    if math.isnan(value):
        return 0
    if dtype == torch.bfloat16:
        return int.from_bytes(struct.pack("<f", value)[2:], "little")
    return int.from_bytes(struct.pack(AS_FLOAT[dtype], value), "little")


def _listed(tensor: torch.Tensor) -> list | None:
    """The values of a tensor of the simulated GPU or of the host; None if they are not known."""
    found = tensor if storage_map.of(tensor) is None else values.of(tensor)
    return None if found is None else _list_of(found)


class _Log:
    """Answers by the line that asks for them, and what operators read, in order."""

    def __init__(self, simulated: bool, given: dict[str, list]):
        self.simulated = simulated
        self.given: dict[str, list] = defaultdict(list, given)
        self.reads: list[int] = []
        self.stub = None
        self.inside = False

    def reading(self, original):
        """A function by which operators learn of values, which are noted: of a call, or of a mode and a tensor."""

        def read(call_or_mode, *given):
            if self.inside:
                return original(call_or_mode, *given)
            self.inside = True  # what it asks of the values themselves is no read
            try:
                answer = original(call_or_mode, *given)
            finally:
                self.inside = False
            if original.__name__ == "scalar":
                self.reads.append(as_read(answer, given[0].dtype))
            elif call_or_mode.operator._opname in ROWS:
                rows = answer if isinstance(answer, torch.Tensor) else answer[0]
                self.reads.append(rows.shape[0])
            return answer

        return read

    def asking(self, owner, kind: str):
        """A method of torch.Tensor that asks for values, whose answers are noted or taken from the notes."""
        original = getattr(owner, kind)

        def asked(*args, **kwargs):
            if self.inside:
                return original(*args, **kwargs)
            self.inside = True
            if self.stub is not None:
                self.stub.mock_reads_wait(1)
            try:
                answer = original(*args, **kwargs)
            finally:
                self.inside = False
                if self.stub is not None:
                    self.stub.mock_reads_wait(0)
            frame = sys._getframe(1)
            while kind == "__index__" and frame.f_code.co_filename.startswith(SIMULATOR):
                frame = frame.f_back  # a slice's bounds are asked for by Python, wherever x[:n] is handed on
            if frame.f_code.co_filename.startswith(SIMULATOR):  # what stands for C++ asks
                if args[0].is_meta and not isinstance(answer, list):  # a list is copied whole
                    self.reads.append(as_read(answer, args[0].dtype))
                return answer
            known = self.known(frame, kind, answer)
            return answer if isinstance(known, float) and math.isnan(known) else known

        return self.standing_for(original, asked)

    def known(self, frame, kind: str, answer):
        """What is noted of the line that asks: on the simulated GPU `answer`, which is noted; else the next note."""
        line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {kind}"
        if self.simulated:
            self.given[line].append(answer)
            return answer
        return self.given[line].pop(0) if self.given.get(line) else answer

    def copying(self, owner, kind: str):
        """A method of torch.Tensor that may copy to the host, where what is small has the noted values."""
        original = getattr(owner, kind)

        def asked(*args, **kwargs):
            inside, self.inside = self.inside, True
            try:
                answer = original(*args, **kwargs)
            finally:
                self.inside = inside
            frame = sys._getframe(1)
            if is_lazy(args[0]):  # it has no shape yet
                return answer
            small = isinstance(answer, torch.Tensor) and answer.numel() <= MOST_COPIED and not answer.is_sparse
            if self.inside or not small or not answer.is_cpu or not args[0].is_cuda:
                return answer
            if self.simulated:
                self.known(frame, kind, _listed(answer))
            else:
                known = self.known(frame, kind, None)
                if known is not None:
                    with torch.no_grad():
                        answer.copy_(torch.tensor(known, dtype=answer.dtype))
            return answer

        return self.standing_for(original, asked)

    def lengths(self, original):
        """ctc_loss, whose C++ copies the lengths to the host: there they have the noted values."""

        def asked(scores, targets, *lengths, **options):
            frame = sys._getframe(1)
            read = [
                self.known(frame, "ctc_loss", _listed(one)) if isinstance(one, torch.Tensor) else one
                for one in lengths[:2]
            ]
            if not self.simulated:
                lengths = [*map(torch.tensor, read), *lengths[2:]]
            inside, self.inside = self.inside, True
            try:
                return original(scores, targets, *lengths, **options)
            finally:
                self.inside = inside

        return self.standing_for(original, asked)

    def standing_for(self, original, asked):
        """`asked`, which answers as `original` where C++ hands a mode what stands under the method's name."""
        handler = handler_of(original) if self.simulated else None
        if handler is not None:
            handles(asked)(_in_its_place(original, handler))
        allowed = UninitializedTensorMixin._allowed_methods
        if original in allowed:  # a parameter without a shape may be moved
            allowed.append(asked)
        return asked


def _in_its_place(original, handler):
    """The handler of what stands for `original`: its own, with a stand-in where a run is given some."""

    def handled(mode, function, args, kwargs):
        try:
            return handler(mode, original, args, kwargs)
        except NoValueError:
            machine = mode.dispatch.machine
            if machine.placeholder_values is None or original not in value_access.STANDING_IN:
                raise
            return value_access.with_placeholder(machine, original, args, kwargs)

    return handled
