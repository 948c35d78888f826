"""PyTorch's own samples of operators, modules and optimizers, on the oracle and on the simulated GPU.

`python -m tools.oracle op-info`; docs/oracle.md says how to read what it prints.
"""
