"""Attention, autocast, dropout and the encoder layer's fast path against the oracle's, event by event."""

import pytest

from tests.exactness import ORACLE
from tools.oracle import cases

CASES = cases.load("attention")


@pytest.mark.parametrize("gpu", cases.GPUS)
def test_events_are_the_oracle_s(gpu, exactness):
    recorded = [case for case in CASES if case.gpu == gpu]
    assert len(recorded) >= 200
    assert cases.differences(recorded) == []
    exactness(2, f"snippets, {gpu}", ORACLE, "snippets", "attention", len(recorded), len(recorded))
