"""Which dtypes CUDA refuses, asked of the oracle operator by operator: `python -m tools.oracle.dtypes`."""
