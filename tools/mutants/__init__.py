"""Mutants of the simulated GPU: whether the tests notice a small change of its code. See `python -m tools.mutants`."""
