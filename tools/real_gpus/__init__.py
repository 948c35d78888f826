"""Compares peaks that others measured on real GPUs with those of the stub engine: `python -m tools.real_gpus`.

docs/real_gpus.json holds the figures and where each comes from, and docs/real_gpus.md is written from it.
"""
