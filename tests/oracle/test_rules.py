"""Snippets on the simulated GPU against the oracle's, event by event, family by family of rules.

The oracle's side is stored: `python -m tools.oracle.rules <family> --keep` made it, from random snippets.
"""

import pytest
import torch

from tests.exactness import ORACLE
from tools.oracle import cases

AT_LEAST = {"attention": 200, "copies": 150, "products": 200}  # snippets a GPU, of the families that have more than 100
APART = {"moves"}  # see test_rules_moves.py
FAMILIES = sorted({*cases.families()} - APART)


@pytest.mark.parametrize("gpu", cases.GPUS)
@pytest.mark.parametrize("family", FAMILIES)
def test_events_are_the_oracle_s(family, gpu, exactness):
    recorded = [case for case in cases.load(family) if case.gpu == gpu]
    assert len(recorded) >= AT_LEAST.get(family, 100)
    enabled = torch.backends.cudnn.enabled  # which some of the snippets set
    try:
        assert cases.differences(recorded) == []
    finally:
        torch.backends.cudnn.enabled = enabled
    exactness(2, f"snippets, {gpu}", ORACLE, "snippets", family, len(recorded), len(recorded))
