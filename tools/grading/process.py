"""A notebook's process: it goes on behind a cell that raises an error, or that does not end."""

from __future__ import annotations

import os
import time
from pathlib import Path
from queue import Empty
from types import TracebackType

from jupyter_client.manager import start_new_kernel

ENDED = "the notebook's process ended here"
GONE = "not run: the notebook's process had ended"
CLEARED = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG")
"""They change how much memory is taken; the course is without them."""
_NAMES = {"_IncompleteInputError": "SyntaxError"}  # what Python 3.13 calls one whose text ends too early
STARTED = 600  # seconds for the kernel to start
INTERRUPTED = 20  # seconds for a cell to end after it has been interrupted


class Process:
    """A kernel on a simulated GPU, in a folder, with `root` on its path; `seconds` is what a cell may take."""

    def __init__(self, gpu: str, folder: Path, root: Path, seconds: float) -> None:
        self.folder, self.seconds, self.alive = folder, seconds, True
        environment = {name: value for name, value in os.environ.items() if name not in CLEARED}
        path = os.pathsep.join(filter(None, [str(root), environment.get("PYTHONPATH", "")]))
        self.environment = {**environment, "PYTHONPATH": path, "LABKIT_GPU": gpu, "HF_HUB_OFFLINE": "1"}

    def __enter__(self) -> Process:
        quiet = ["--log-level=40"]  # of the kernel itself: no advice on its transport
        self.manager, self.client = start_new_kernel(
            startup_timeout=STARTED,
            kernel_name="python3",
            cwd=str(self.folder),
            env=self.environment,
            extra_arguments=quiet,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, source: str) -> tuple[str, str]:
        """What a cell prints, and its error in one line ("" without one)."""
        if not self.alive:
            return "", GONE
        asked = self.client.execute(source, allow_stdin=False, stop_on_error=False)
        printed, error, ended = self._listen(asked, self.seconds)
        if not ended and self.alive:
            self.manager.interrupt_kernel()
            self.alive = self._listen(asked, INTERRUPTED)[2]
            return printed, f"took more than {self.seconds:g} s"
        return printed, error if self.alive else ENDED

    def _listen(self, asked: str, seconds: float) -> tuple[str, str, bool]:
        """What comes of a request: what it prints, its error, and whether it has ended in so many seconds."""
        printed, error, until = [], "", time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                message = self.client.get_iopub_msg(timeout=min(1, max(0, until - time.monotonic())))
            except Empty:
                if not self.manager.is_alive():
                    self.alive = False
                    break
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream" and content["name"] == "stdout":
                printed.append(content["text"])
            elif kind == "error":
                lines = content["evalue"].strip().splitlines() or [""]
                name = _NAMES.get(content["ename"], content["ename"])
                error = f"{name}: {lines[0]}".removesuffix(": ")
            elif kind == "status" and content["execution_state"] == "idle":
                return "".join(printed), error, True
        return "".join(printed), error, False
