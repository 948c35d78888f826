"""The tools of the league table, a module each, and the formulas."""

NAMES = ("simulated", "memtracker", "kitsune", "mlsysim", "accelerate", "torchinfo", "zero", "korthikanti")
