"""A workload that runs again is equal to the oracle, until a rule is taken away."""

import torch

from tools.oracle.again import compare, without_rule


def test_a_missing_rule_is_found_and_comes_back():
    assert compare("dropout").equal
    with without_rule(torch.ops.aten.native_dropout.default):
        assert not compare("dropout").equal
    assert compare("dropout").equal
