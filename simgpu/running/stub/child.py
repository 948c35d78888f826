"""Runs a script in this process, on the stub engine, and writes what its memory was: `python -m ... JOB`.

`simgpu.running.stub.run` starts it. Nothing of torch is imported or asked before the program does so itself, because
PyTorch reads its settings then. The job and the result are files of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import CodeType, FunctionType

from simgpu.report.verdict import OUT_OF_MEMORY
from simgpu.running.after_import import AfterImport
from simgpu.running.endings import NOT_OF_VALUES, ended_by, of_memory
from simgpu.running.script import Script
from simgpu.running.stub.launches import STEP, Launches
from simgpu.running.stub.rnn import RECURRENT, WithoutCuDNN
from simgpu.running.stub.saved import Saved

MOST_EVENTS = 2_000_000
"""Events of the memory history that are kept, the newest; with its stack each needs about 1 KB."""

OF_VALUES = """
Before that it received 0 in place of values (listed below), which may be why. Kernels compute nothing on the stub \
engine, so a program may end where it checks results. The figures are those up to there."""
"""A hint about an error of a program that has read values which are not known."""
UNTRACED = (
    "simgpu.running.stub.known",
    "simgpu.running.stub.launches",
    "simgpu.running.stub.comparisons",
    "simgpu.running.stub.reads",
    "simgpu.uses",
    "simgpu.report",
)
"""Modules and packages that Dynamo skips."""
PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


class Watched:
    """Records the program's memory, once it has imported torch."""

    def __init__(self, job: dict):
        self.job = job
        self.leave = ExitStack()
        self.saved = Saved(job["caches"])
        self.owners = None
        self.limit = None
        self.failure: dict | None = None
        self.reads = None
        self.known = None
        self.recurrent = WithoutCuDNN()
        self.launches = Launches(job["launches"])
        self.runtime = ctypes.CDLL(job["runtime"])
        self.began = False
        self._offset = self._reset_peak = self._foreign = 0

    def torch_imported(self, torch) -> None:
        """Prepares torch: recording begins when the program first uses CUDA, after PyTorch has read its settings."""
        from simgpu.running.stub import compiled, untimed
        from simgpu.running.stub.comparisons import taken_to_hold
        from simgpu.running.stub.known import Known

        untimed.metadata_only(torch)
        self.recurrent.torch_imported(torch)
        self.saved.torch_imported(torch)
        self.known = Known(torch, self.runtime)
        self.known.begin()
        compiled.follow(torch, self.known)
        taken_to_hold(torch, self.known, self._held)
        if self.job["ranks"] is not None:
            from simgpu.stub.rank import rank_of

            place = {name: self.job[name] for name in ("rank", "ranks", "per_node")}
            self.leave.enter_context(rank_of(**place))
        self._watch_steps(torch)
        self.launches.torch_imported(torch)
        real = torch.cuda._lazy_init

        def _lazy_init():
            real()
            if torch.cuda.is_initialized() and not self.began:
                torch.cuda._lazy_init = real
                self.begin(torch)

        torch.cuda._lazy_init = _lazy_init

    def _held(self) -> None:
        if self.reads is not None:
            self.reads.taken_to_hold()

    def _watch_steps(self, torch) -> None:
        """Follows optimizers and backward passes, and ends the program after as many as were asked for."""
        from simgpu.patches import Patches
        from simgpu.running.steps import Limit
        from simgpu.running.stub.owners import Owners

        autograd = torch.autograd
        self.owners = Owners(self.count, lambda: self.launches.mark(STEP))
        run = self.owners.backward(autograd.graph._engine_run_backward)
        autograd.graph._engine_run_backward = autograd._engine_run_backward = run
        self.limit = Limit(self.owners, self.job["steps"], self.job["backward_passes"])
        self.limit.patch(Patches())
        autograd.graph._engine_run_backward = autograd._engine_run_backward

    def begin(self, torch) -> None:
        """Records from here on."""
        from simgpu.running.stub.reads import Reads

        self.began = True
        memory = torch.cuda.memory
        memory._record_memory_history("all", context="all", stacks="python", max_entries=MOST_EVENTS)
        memory._record_memory_history = torch.cuda.memory._record_memory_history = lambda *_, **__: None
        self._keep_counters(torch)
        if hasattr(torch._C, "_cuda_attach_out_of_memory_observer"):
            torch._C._cuda_attach_out_of_memory_observer(self._ran_out)
        self.reads = Reads(self.saved.read, self._is_known)
        self.reads.begin(self.runtime)
        self._foreign = self.runtime.mock_kernels(0)
        if not self._without_time(torch):
            self.launches.begin(torch)

    def _is_known(self) -> bool:
        """Returns whether the program reads what is known."""
        self.launches.look()
        return self.known is not None and self.known.reading

    def count(self) -> int:
        """How many allocations the current device has made."""
        if not self.began:
            return 0
        import torch

        return self._stats(torch)["allocation"]["all"]["allocated"] + self._offset

    def _stats(self, torch) -> dict:
        return torch._C._cuda_memoryStats(torch._C._cuda_getDevice())

    def _keep_counters(self, torch) -> None:
        """Adds up counters before the program resets them."""
        reset_peak, reset_all = torch._C._cuda_resetPeakMemoryStats, torch._C._cuda_resetAccumulatedMemoryStats
        self._peaks = (0, 0)

        def keep_peak(device):
            self._peaks = self.peaks()
            return reset_peak(device)

        def keep_count(device):
            self._offset = self.count()
            return reset_all(device)

        torch._C._cuda_resetPeakMemoryStats, torch._C._cuda_resetAccumulatedMemoryStats = keep_peak, keep_count

    def peaks(self) -> tuple[int, int]:
        """The most bytes that were allocated and reserved, whatever the program has reset."""
        import torch

        stats = self._stats(torch)
        now = (stats[f"{name}_bytes"]["all"]["peak"] for name in ("allocated", "reserved"))
        return tuple(map(max, self._peaks, now))  # pyright: ignore[reportReturnType]

    def result(self, failed: bool) -> dict:
        """Returns what is known at the end."""
        if not self.began or self.owners is None or self.reads is None:
            return {"used": False, "steps": self.steps()}
        import torch

        from simgpu.running.stub import findings

        self.runtime.mock_on_read(None)
        self.launches.end()
        device = torch._C._cuda_getDevice()
        count, (peak, reserved) = self.count(), self.peaks()
        self.owners.look()
        self.runtime.mock_most_used.restype = ctypes.c_size_t
        found = {
            "used": True,
            "torch": torch.__version__,
            "peak": peak,
            "reserved": reserved,
            "most_used": self.runtime.mock_most_used(device),
            "steps": self.owners.steps,
            "libraries": self.called(),
            "streams": bool(self.runtime.mock_used_streams()),
            "dtypes": self.owners.dtypes,
            "failing": {name: one for name, one in (self.failure or {}).items() if name != "codes"},
            "reads": [[*key, number] for key, number in self.reads.counts.most_common()],
        }
        found["times"] = self._times(torch)
        self.saved.patches.undo()
        snapshot: dict = dict(torch.cuda.memory._snapshot())
        if self.job["snapshot"]:
            import pickle

            Path(self.job["snapshot"]).write_bytes(pickle.dumps(snapshot))
        return found | findings.of(
            snapshot["device_traces"][device],
            count,
            self.owners,
            peak=peak,
            reserved=reserved,
            failed=failed,
            workspaces=frozenset(self.job["workspaces"]),
            gpu=self.job["memory"],
            version=torch.__version__,
        )

    def _without_time(self, torch) -> str:
        """Returns why no time can be estimated, "" if it can."""
        if self.job["ranks"] is not None:
            return "of one rank of several, because the others do not run"
        known = hasattr(torch._C, "_get_fp32_precision_getter")
        return "" if known else f"with torch {torch.__version__}, which is too old"

    def _times(self, torch) -> dict:
        """Returns what is known of the time that the run would take, or why nothing is."""
        if why := self._without_time(torch):
            return {"why": why}
        from simgpu.gpus import specs
        from simgpu.running.stub import timing

        foreign = self.runtime.mock_kernels(0) - self._foreign
        try:
            return timing.document(self.launches, specs.spec(self.job["gpu"]), foreign)
        except Exception:  # the figures of memory do not need it
            return {"why": f"because of an error here: {traceback.format_exc().strip().splitlines()[-1]}"}

    def called(self) -> list[str]:
        """The libraries with workspaces that only a GPU knows, of which the program has called a function."""
        from simgpu.stub.libraries import called_name

        paths = self.job["libraries"]
        found = [base for base in paths if getattr(ctypes.CDLL(paths[base]), called_name(base))()]
        return [*found, *([RECURRENT] if self.recurrent.used else [])]

    # What `endings` asks

    def steps(self) -> int:
        return 0 if self.owners is None else self.owners.steps

    def failing(self) -> frozenset | None:
        if self.failure is None:
            return None
        return self.failure["codes"] if self.count() == self.failure["count"] else frozenset()

    def unreached(self) -> tuple[str, ...]:
        return () if self.limit is None else self.limit.unreached()

    def without_effect(self) -> str:
        return "" if self.limit is None else self.limit.without_effect()

    def reached(self) -> str:
        return "" if self.limit is None else self.limit.reached

    def hint(self, error: BaseException) -> str:
        if "torch" in sys.modules:
            from simgpu.running import builds

            if advice := builds.advice(error):
                return f"\n{advice}"
        read = self.reads is not None and self.reads.counts and not isinstance(error, NOT_OF_VALUES)
        return OF_VALUES if read else ""

    def _ran_out(self, device: int, asked: int, total: int, free: int) -> None:
        """Called by PyTorch when an allocation has failed: notes what the program was doing."""
        import torch

        from simgpu.report.failing import model_of
        from simgpu.report.places import codes_of

        frame = sys._getframe(1)
        building, model = model_of(frame)
        self.failure = {
            "codes": frozenset(codes_of(frame)),
            "count": self.count(),
            "building": building,
            "model": model,
            "autocast": torch.is_autocast_enabled("cuda"),
            "recorded": torch.is_grad_enabled(),
        }


def main(path: str) -> int:
    """Runs the job in the file `path`; returns the exit status of the program."""
    _end_with_parent()
    job = json.loads(Path(path).read_text())
    watched = Watched(job)
    from simgpu.running.stub import started, untimed

    os.environ.update(started.environment(job["caches"], os.environ.get("PYTHONPATH", "")))
    then = {"torch": watched.torch_imported, "safetensors.torch": watched.saved.safetensors_imported}
    then |= {"torch._dynamo.trace_rules": _skipped, "torch._dynamo.eval_frame": _hooks_skipped}
    sys.meta_path.insert(0, AfterImport(_together(then, untimed.PATCHES, watched.launches.then())))
    script = Script(job["program"], job["arguments"], job["module"])
    error: BaseException | None = None
    with script.as_main() as execute:
        try:
            execute()
        except BaseException as raised:
            error = raised
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the report is made of what was measured
        elif error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(type(error), error, _own(error.__traceback__), file=sys.stderr)
        end = ended_by(error, watched)
        result = {**asdict(end), "error": str(of_memory(error) or "")}
        try:
            result |= watched.result(end.ending == OUT_OF_MEMORY)
        except Exception:
            result["incomplete"] = traceback.format_exc()
        watched.saved.patches.undo()
        Path(job["result"]).write_text(json.dumps(result))
        error = None
        watched.leave.close()
    sys.stdout.flush()
    return 0


def _together(*then: Mapping[str, Callable]) -> dict[str, Callable]:
    """Returns, by module, a function that calls those of all mappings."""
    found: dict[str, list[Callable]] = {}
    for one in then:
        for name, function in one.items():
            found.setdefault(name, []).append(function)

    def calls(functions: list[Callable]) -> Callable:
        return lambda module: [function(module) for function in functions]

    return {name: calls(functions) for name, functions in found.items()}


def _skipped(trace_rules) -> None:
    """Makes Dynamo skip what this package runs while a compiled function calls an operator or reads a value."""
    for name in UNTRACED:
        trace_rules.add(name)


def _hooks_skipped(eval_frame) -> None:
    """Makes Dynamo compile no hook of an optimizer or of backward by itself.

    It may still trace them as parts of a step that is compiled as a whole, which a skipped file would break up.
    """
    from simgpu.running import steps
    from simgpu.running.stub import owners

    named = (vars(owners), vars(owners.Owners), vars(steps), vars(steps.Limit))
    for function in (one for names in named for one in names.values()):
        if isinstance(function, FunctionType):
            for code in _codes(function.__code__):
                eval_frame.skip_code(code)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those inside of it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _end_with_parent() -> None:
    """Makes Linux end this process when the one that reports on it ends, however that happens (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _own(trace):
    """A traceback without the frames that call the program."""
    files = (__file__, sys.modules[Script.__module__].__file__)
    while trace is not None and trace.tb_frame.f_code.co_filename in files:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
