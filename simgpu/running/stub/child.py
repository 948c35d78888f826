"""Runs a script in this process, on the stub engine, and writes what its memory was: `python -m ... JOB`.

`simgpu.running.stub.run` starts it. Nothing of torch is imported or asked before the program does so itself, because
PyTorch reads its settings then. The job is a file of JSON, and the result is another one.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path

from simgpu.running.endings import raising_code
from simgpu.running.script import Script, StepsDone
from simgpu.running.stub.imports import AfterImport
from simgpu.running.stub.saved import Saved

MOST_EVENTS = 2_000_000
"""Events of the memory history that are kept, the newest; with its stack each needs about 1 KB."""
COMPLETED, OUT_OF_MEMORY, STOPPED = "completed", "out of memory", "stopped"


class Watched:
    """What is recorded of the program's memory, once it has imported torch."""

    def __init__(self, job: dict):
        self.job = job
        self.leave = ExitStack()
        self.saved = Saved(job["caches"])
        self.owners = None
        self.reads = None
        self.known = None
        self.runtime = ctypes.CDLL(job["runtime"])
        self.began = False
        self._offset = self._reset_peak = 0

    def torch_imported(self, torch) -> None:
        """Prepares torch: recording begins when the program first uses CUDA, after PyTorch has read its settings."""
        from simgpu.running.stub import untimed
        from simgpu.running.stub.known import Known

        untimed.metadata_only(torch)
        self.saved.torch_imported(torch)
        self.runtime.mock_others_kernels.restype = ctypes.c_ulong
        self.known = Known(torch, self.runtime.mock_others_kernels)
        self.known.begin()
        if self.job["ranks"] is not None:
            from simgpu.stub.rank import rank_of

            place = {name: self.job[name] for name in ("rank", "ranks", "per_node")}
            self.leave.enter_context(rank_of(**place))
        real = torch.cuda._lazy_init

        def _lazy_init():
            real()
            if torch.cuda.is_initialized() and not self.began:
                torch.cuda._lazy_init = real
                self.begin(torch)

        torch.cuda._lazy_init = _lazy_init

    def begin(self, torch) -> None:
        """Records from here on."""
        from simgpu.running.stub.owners import Owners
        from simgpu.running.stub.reads import Reads

        self.began = True
        memory = torch.cuda.memory
        memory._record_memory_history("all", context="all", stacks="python", max_entries=MOST_EVENTS)
        memory._record_memory_history = torch.cuda.memory._record_memory_history = lambda *_, **__: None
        self._keep_counters(torch)
        self.owners = Owners(self.count, self.job["steps"])
        autograd = torch.autograd
        autograd.graph._engine_run_backward = autograd._engine_run_backward = self.owners.backward(
            autograd.graph._engine_run_backward
        )
        self.reads = Reads(self.saved.read, lambda: self.known is not None and self.known.reading)
        self.reads.begin(self.runtime)

    def count(self) -> int:
        """How many allocations the current device has made."""
        import torch

        return self._stats(torch)["allocation"]["all"]["allocated"] + self._offset

    def _stats(self, torch) -> dict:
        return torch._C._cuda_memoryStats(torch._C._cuda_getDevice())

    def _keep_counters(self, torch) -> None:
        """What the program resets is added up before."""
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
        """What is known at the end."""
        if not self.began or self.owners is None or self.reads is None:
            return {"used": False}
        import torch

        from simgpu.running.stub import findings

        self.runtime.mock_on_read(None)
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
            "reads": [[*key, number] for key, number in self.reads.counts.most_common()],
        }
        self.saved.patches.undo()
        snapshot: dict = dict(torch.cuda.memory._snapshot())
        if self.job["snapshot"]:
            import pickle

            Path(self.job["snapshot"]).write_bytes(pickle.dumps(snapshot))
        trace = snapshot["device_traces"][device]
        return found | findings.of(trace, count, self.owners, peak, failed, frozenset(self.job["workspaces"]))

    def called(self) -> list[str]:
        """The libraries with workspaces that only a GPU knows, of which the program has called a function."""
        from simgpu.stub.libraries import called_name

        paths = self.job["libraries"]
        return [base for base in paths if getattr(ctypes.CDLL(paths[base]), called_name(base))()]

    def raised_in_its_place(self, error: BaseException | None) -> bool:
        """Whether an error was raised in the place of an out-of-memory error: no allocation succeeded after the last
        one that failed, and code that was running then raises the error itself."""
        code = None if error is None else raising_code(error)
        if code is None or not self.began:
            return False
        import torch

        traces = torch.cuda.memory._snapshot().get("device_traces", [])
        events = [one for one in traces[torch._C._cuda_getDevice()] if one["action"] in ("alloc", "oom")]
        if not events or events[-1]["action"] != "oom":
            return False
        return any((one["filename"], one["name"]) == (code.co_filename, code.co_name) for one in events[-1]["frames"])


def main(path: str) -> int:
    """Runs the job in the file `path`; returns the exit status of the program."""
    job = json.loads(Path(path).read_text())
    watched = Watched(job)
    from simgpu.running.stub import started, untimed

    os.environ.update(started.environment(job["caches"], os.environ.get("PYTHONPATH", "")))
    then = {"torch": watched.torch_imported, "safetensors.torch": watched.saved.safetensors_imported}
    sys.meta_path.insert(0, AfterImport({**then, **untimed.PATCHES}))
    script = Script(job["program"], job["arguments"], job["module"])
    error: BaseException | None = None
    with script.as_main() as execute:
        try:
            execute()
        except BaseException as raised:
            error = raised
        ending, text = _ending(error)
        if ending != COMPLETED and not isinstance(error, SystemExit):
            assert error is not None
            traceback.print_exception(type(error), error, _own(error.__traceback__), file=sys.stderr)
        if ending == STOPPED and watched.raised_in_its_place(error):
            said = f"status {error.code}" if isinstance(error, SystemExit) else text
            ending, text = OUT_OF_MEMORY, f"The program ended with {said}"
        result = {"ending": ending, "text": text, "error": _message(error)}
        try:
            result |= watched.result(ending == OUT_OF_MEMORY)
        except Exception:
            result["incomplete"] = traceback.format_exc()
        watched.saved.patches.undo()
        Path(job["result"]).write_text(json.dumps(result))
        error = None
        watched.leave.close()
    sys.stdout.flush()
    return 0


def _ending(error: BaseException | None) -> tuple[str, str]:
    """How the program ended, and a sentence about it."""
    if isinstance(error, StepsDone):
        return COMPLETED, "steps"
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return COMPLETED, ""
    of_memory = _of_memory(error)
    if isinstance(error, SystemExit):
        if of_memory:
            return OUT_OF_MEMORY, f"The program ended with status {error.code} after the error."
        return STOPPED, f"it ended with status {error.code}"
    if of_memory:
        return OUT_OF_MEMORY, ""
    return STOPPED, f"{type(error).__name__}: {error}".strip().splitlines()[0]


def _of_memory(error: BaseException | None) -> bool:
    """Whether an error is PyTorch's out of memory error, or was raised because of one."""
    return _cause(error) is not None


def _cause(error: BaseException | None) -> BaseException | None:
    kind = getattr(sys.modules.get("torch"), "OutOfMemoryError", ())
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _message(error: BaseException | None) -> str:
    found = _cause(error)
    return "" if found is None else str(found)


def _own(trace):
    """A traceback without the frames that call the program."""
    files = (__file__, sys.modules[Script.__module__].__file__)
    while trace is not None and trace.tb_frame.f_code.co_filename in files:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
