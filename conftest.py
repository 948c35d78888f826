"""What every test and every notebook runs under."""

import os

import hypothesis
import pytest

# They change how much memory is taken, or how wide a line is; the stored outputs were made without them.
CLEARED = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "COLUMNS", "LINES")

cleared_names = pytest.StashKey[list[str]]()

hypothesis.settings.register_profile("labkit", deadline=None)
hypothesis.settings.load_profile("labkit")


def pytest_configure(config):
    config.stash[cleared_names] = [name for name in CLEARED if os.environ.pop(name, None) is not None]
    # The course downloads no model; in a test that tries to, it is an error.
    os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_report_header(config):
    gpu = os.environ.get("LABKIT_GPU")
    lines = [f"LABKIT_GPU={gpu}: the notebooks run on a simulated {gpu}"] if gpu else []
    if config.stash[cleared_names]:
        lines.append(f"taken out of the environment: {', '.join(config.stash[cleared_names])}")
    return lines
