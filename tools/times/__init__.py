"""Compares the clock with published times of models, and writes docs/times.md: `python -m tools.times`."""
