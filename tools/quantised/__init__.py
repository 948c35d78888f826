"""Measures torchao's float8, 8-bit optimizers and QLoRA on the stub engine: `python -m tools.quantised`."""
