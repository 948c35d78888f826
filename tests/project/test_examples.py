"""The examples run, and print what they are known to print."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pinned import of_pinned_torch

ROOT = Path(__file__).parents[2]
PRINTED = {
    # The two figures are the oracle's too (torch 2.13.0).
    "simulated_gpu.py": "H100: 2,751,873,024 B allocated at the peak\n2,917,138,432 B reserved\nto the byte\n",
    "allocator.py": "4 B take 512 B of a segment of 2 MiB\n3 MiB take 3 MiB of a segment of 20 MiB\n"
    "freed, 512 B are allocated, and 22 MiB stay reserved\n",
}


@of_pinned_torch
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example(path):
    done = subprocess.run([sys.executable, path], cwd=ROOT, env=None, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (PRINTED[path.name], "")
