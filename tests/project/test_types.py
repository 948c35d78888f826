"""The types of both packages, as pyright checks them (pyproject.toml says how strictly)."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pinned import of_pinned_torch

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["simgpu", "labkit"])
def test_a_package_says_that_it_has_types(package):
    assert (ROOT / package / "py.typed").exists()


@pytest.mark.everywhere
@of_pinned_torch
def test_types():
    pytest.importorskip("basedpyright")
    pytest.importorskip("pandas", "3", reason="pandas 2 annotates itself so that no list is a column's names")
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--project", "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
