"""A limit on memory: a simulated GPU that is watched, and what is said if more is taken than is allowed."""

import contextlib
import dataclasses

import torch

from simgpu import machine as machines
from simgpu.report import page
from simgpu.report.findings import of_parts
from simgpu.report.report import Report, facts_of, report_of
from simgpu.report.sizes import capacity, parse, size
from simgpu.report.verdict import COMPLETED, OUT_OF_MEMORY
from simgpu.report.watch import Watch
from simgpu.session import simulated_gpu

COUNTERS = {"peak": "allocates", "reserved": "reserves", "nvidia_smi": "shows in nvidia-smi"}


class Gate:
    """Inside the `with`, a simulated GPU is on, and its memory is watched.

    `peak`, `reserved`, `nvidia_smi`: the most bytes that are allowed, as numbers or like "12 GiB"; None for no limit.
    Raises ValueError for a GPU that is not known, and for what is no size.
    """

    def __init__(self, gpu: str, peak=None, reserved=None, nvidia_smi=None, memory=None, values=False):
        asked = {"peak": peak, "reserved": reserved, "nvidia_smi": nvidia_smi}
        self.limits = {name: parse(limit) for name, limit in asked.items() if limit is not None}
        options = {"values": True} if values else {}
        self._gpu = simulated_gpu(gpu, None if memory is None else capacity(memory), **options)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Gate":
        self._stack.enter_context(self._gpu)
        self._watch = self._stack.enter_context(Watch(machines.on()))
        return self

    def __exit__(self, *error) -> None:
        self._stack.close()

    def report(self, ending: str = COMPLETED) -> Report:
        """What was taken so far."""
        self._watch.close()
        return report_of(self._watch, "the test", ending)

    def ran_out(self, error: BaseException) -> bool:
        """Whether an error is PyTorch's for want of memory on this GPU."""
        return isinstance(error, torch.OutOfMemoryError) and self._watch.failure is not None

    def out_of_memory(self) -> str:
        """What is said then."""
        return str(self.report(OUT_OF_MEMORY))

    def above(self) -> str:
        """What is said if a limit is passed; "" if none is."""
        report = self.report()
        said = []
        for name, limit in self.limits.items():
            over = getattr(report, name) - limit
            if over > 0:
                said.append(
                    f"{over:,} B ({size(over)}) over the limit: on a simulated {report.gpu} the test "
                    f"{COUNTERS[name]} {getattr(report, name):,} B ({size(getattr(report, name))}), and {name} allows "
                    f"{limit:,} B ({size(limit)})."
                )
        if not said:
            return ""
        over = max(getattr(report, name) - limit for name, limit in self.limits.items())
        levers = tuple(of_parts(facts_of(self._watch, report)))
        report = dataclasses.replace(report, findings=(*report.findings, *levers))
        sections = ["\n".join(said), page.where(report), page.parts(report), page.lines(report), page.findings(report)]
        return "\n\n".join(filter(None, [*sections, page.not_modelled(report)]))
