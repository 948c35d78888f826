"""The process that runs a program on the stub engine ends when the one that reports on it ends. Needs no engine."""

import os
import signal
import subprocess
import sys
import time

import pytest

from simgpu.running.stub import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stub engine runs on Linux")

CHILD = (
    "import time; from simgpu.running.stub import child; child._end_with_parent(); print(flush=True); time.sleep(600)"
)
PARENT = f"""
import subprocess, sys
process = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
process.wait()
"""
ENOUGH = 60  # seconds for what takes none, on a machine that is busy


def test_a_killed_parent_takes_its_process_along():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)  # it is there
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + ENOUGH
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Whether a process exists and is no zombie that nothing waits for."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_exception_while_it_is_waited_for_ends_the_process(tmp_path):
    class TimeIsUpError(Exception):
        pass

    def raised(*_):
        raise TimeIsUpError

    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    before = signal.signal(signal.SIGALRM, raised)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeIsUpError):
            run._waited(process, tmp_path)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert process.returncode == -signal.SIGKILL
