"""What is replaced in the notebooks' outputs before they are compared: names of GPUs, and nothing of their numbers."""

import configparser
import re
from pathlib import Path

import pytest

from simgpu.gpus.specs import SPECS

CONFIG = Path(__file__).parents[1] / "nbval_sanitize.cfg"


def sanitized(text):
    """As nbval does it: every section's pattern in turn."""
    parser = configparser.RawConfigParser()
    parser.read(CONFIG)
    for section in parser.sections():
        text = re.sub(parser.get(section, "regex"), parser.get(section, "replace"), text)
    return text


@pytest.mark.parametrize("key", SPECS)
def test_a_gpu_is_called_the_same_simulated_and_real(key):
    names = (f"simulated {key}", SPECS[key].name, key)
    assert {sanitized(f"<th>{name}</th>") for name in names} == {"<th>GPU</th>"}
    assert {sanitized(f"{name}, 40 MiB") for name in names} == {"GPU, 40 MiB"}


def test_what_the_numbers_are_stays():
    assert sanitized("the A100 takes 8519680 B, an H100 33554432 B") == "the A100 takes 8519680 B, an GPU 33554432 B"
    assert sanitized("NVIDIA L40 and H1000") == "NVIDIA L40 and H1000"
    assert sanitized("<Event object at 0x7f0011223344>") == "<Event object at ADDRESS>"
    assert sanitized("a   b") == "a_b"


def test_versions_that_are_found_stay_out_and_those_that_are_wanted_stay():
    assert sanitized("[OK] torch 2.13.0+cpu, wanted 2.11 or later") == "[OK] torch VERSION, wanted 2.11 or later"
    assert sanitized("[OK] nvidia-ml-py 12.575.51, wanted") == "[OK] nvidia-ml-py VERSION, wanted"
    assert sanitized("[FAIL] torch 2.10.0, wanted 2.11") == "[FAIL] torch 2.10.0, wanted 2.11"


def test_the_build_of_pytorch_stays_out_and_its_version_stays():
    assert sanitized("(an estimate); torch 2.13.0+cpu") == sanitized("(an estimate); torch 2.13.0+cu130")
    assert sanitized("torch 2.13.0") != sanitized("torch 2.12.1")
