"""What every test and every notebook runs under."""

import os
import re
from importlib import metadata
from pathlib import Path

import hypothesis
import pytest
from jupyter_client import launcher
from nbval import kernel

from tests import forked

# They change how much memory is taken, or how wide a line is; the stored outputs were made without them.
CLEARED = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "COLUMNS", "LINES")

cleared_names = pytest.StashKey[list[str]]()

# Neither depends on how busy the machine is.
UNTIMED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("labkit", **UNTIMED)
hypothesis.settings.load_profile("labkit")


# Where tests run several at a time, each keeps to one thread: PyTorch's threads, one for each core in every process,
# would keep each other waiting. Read when torch is imported, in notebooks' kernels and the tests' other programs too.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Stored results are the meta engine's, also where the stub engine is installed.
os.environ["SIMGPU_ENGINE"] = "meta"


def pytest_configure(config):
    config.stash[cleared_names] = [name for name in CLEARED if os.environ.pop(name, None) is not None]
    # The course downloads no model; in a test that tries to, it is an error.
    os.environ["HF_HUB_OFFLINE"] = "1"
    if forked.AVAILABLE:
        kernel.start_new_kernel = starting_forks(kernel.start_new_kernel)


def starting_forks(start):
    """Returns nbval's function that starts a kernel, so that its kernels are forks (tests/forked.py).

    Others are not: a fork is there at once, and only nbval waits until what a kernel prints arrives.
    """

    def started(*arguments, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launcher, "Popen", forked.Kernel)
            return start(*arguments, **options)

    return started


def of_another_torch() -> str:
    """The version of torch that the notebooks' stored outputs are of, where another minor version is installed; else
    ""."""
    pinned = re.search(r"^torch==([\d.]+)", (Path(__file__).parent / "constraints.txt").read_text(), re.MULTILINE)[1]
    same = pinned.split(".")[:2] == metadata.version("torch").split(".")[:2]
    return "" if same else pinned


def pytest_collection_modifyitems(config, items):
    if of_another_torch():  # whose kernels, optimizers and messages are others: what must hold is that cells run
        for item in items:
            if item.path.suffix == ".ipynb" and item.path.parent == config.rootpath / "notebooks":
                item.options["check"] = False


def pytest_report_header(config):
    gpu = os.environ.get("LABKIT_GPU")
    lines = [f"LABKIT_GPU={gpu}: the notebooks run on a simulated {gpu}"] if gpu else []
    if of_another_torch():
        stored = f"the outputs stored in notebooks/ are of torch {of_another_torch()}: cells run, and are not compared"
        lines.append(f"torch {metadata.version('torch')} is installed, {stored}")
    if config.stash[cleared_names]:
        lines.append(f"taken out of the environment: {', '.join(config.stash[cleared_names])}")
    return lines
