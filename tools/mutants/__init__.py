"""Checks whether the tests notice small changes of simgpu: `python -m tools.mutants --sample 200 --seed 1`."""
