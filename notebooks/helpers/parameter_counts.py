"""Counts the parameters of layers by plain arithmetic.

Values that are not counts are refused.
"""

from __future__ import annotations

from labkit.formulas import of_counts


@of_counts
def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Counts the parameters of a Linear layer: a weight ``[outputs, inputs]`` and a bias ``[outputs]``."""
    return inputs * outputs + bias * outputs


@of_counts
def norm(features: int) -> int:
    """Counts the parameters of a BatchNorm or LayerNorm over ``features``: a scale and a shift."""
    return 2 * features


@of_counts
def embedding(entries: int, features: int) -> int:
    """Counts the parameters of an Embedding: one table ``[entries, features]``."""
    return entries * features


@of_counts
def attention(features: int, bias: bool = True) -> int:
    """Counts the parameters of multi-head attention, whose query, key, value and output are Linears of ``features``."""
    return 4 * linear(features, features, bias)
