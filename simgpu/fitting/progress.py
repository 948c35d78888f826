"""Progress messages of `simgpu fit` on standard error while it runs plans."""

import shutil
import sys
import time
from contextlib import contextmanager

SECONDS = 10
"""Seconds between two lines if standard error is not a terminal."""


class Silent:
    """Prints no progress, for calls from Python."""

    def stage(self, words: str) -> None:
        """Notes the current stage."""

    @contextmanager
    def running(self, plan, gpu: str):
        """Wraps the run of a plan; yields a list, to which the result is appended."""
        yield []


class Progress(Silent):
    """Prints which plan runs and the result of the last one.

    On a terminal it rewrites one line. Elsewhere it prints a line at most every SECONDS, and none in a shorter run.
    """

    def __init__(self, stream=None):
        self.stream = sys.stderr if stream is None else stream
        self.terminal = self.stream.isatty()
        self.runs = 0
        self._plan = self._last = ""
        self._begun = self._written = time.monotonic()
        self._shown = False

    def stage(self, words: str) -> None:
        self._say(f"{self._plan}: {words}" if self._plan else words)

    @contextmanager
    def running(self, plan, gpu: str):
        self.runs += 1
        self._plan = f"run {self.runs}, {plan} on a simulated {gpu}"
        found: list[str] = []
        try:
            yield found
        finally:
            self._last = f"; {plan}: {found[-1]}" if found else self._last
            self._plan = ""

    def _say(self, words: str) -> None:
        now = time.monotonic()
        if self.terminal:
            line = f"{now - self._begun:.0f} s, {words}{self._last}"
            width = shutil.get_terminal_size().columns - 1
            self.stream.write(f"\r\x1b[K{line if len(line) <= width else line[: width - 1] + '…'}")
            self._shown = True
        elif now - self._written >= SECONDS:
            self._written = now
            self.stream.write(f"simgpu fit: {now - self._begun:.0f} s, {words}{self._last}\n")
        self.stream.flush()

    def clear(self) -> None:
        """Clears the line on the terminal."""
        if self._shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self._shown = False
