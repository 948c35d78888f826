"""The scripts of examples/ranks: each one prints the peak of a rank, and divides what its scheme divides."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("forked_programs")
SCHEMES = ["data", "fsdp", "tensor", "pipeline", "experts", "context"]


@cache
def peak(scheme, ranks=4, rank=0, *arguments):
    """The MiB that the script prints for this rank."""
    script = ROOT / "examples" / "ranks" / f"{scheme}.py"
    command = [sys.executable, "-m", "simgpu", "run", "--gpu", "A100-80GB", f"--ranks={ranks}", f"--rank={rank}"]
    done = subprocess.run([*command, script, *arguments], cwd=ROOT, capture_output=True, text=True)
    found = re.findall(rf"rank {rank} of {ranks}: ([\d,.]+) MiB at the peak", done.stdout)
    assert done.returncode == 0 and len(found) == 1, done.stdout + done.stderr
    return float(found[0].replace(",", ""))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_prints_the_peak_of_a_rank(scheme):
    assert peak(scheme) > 100


def test_shards_are_smaller_than_the_whole_model():
    assert peak("fsdp") < peak("data") and peak("tensor") < peak("data")


def test_the_rank_of_the_popular_experts_is_the_fullest():
    hot, others = (peak("experts", 4, rank, "--hot=0.5") for rank in (0, 1))
    assert others < peak("experts") < hot


def test_experts_refuse_a_share_that_is_none():
    script = ROOT / "examples" / "ranks" / "experts.py"
    done = subprocess.run([sys.executable, script, "--hot=2"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "--hot is a share between 0 and 1, not 2.0" in done.stderr
