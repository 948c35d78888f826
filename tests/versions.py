"""What stored streams of events hold of: which Python and which torch."""

import sys
from importlib import metadata

TORCH = tuple(int(part) for part in metadata.version("torch").split("+")[0].split(".")[:2])

# Up to Python 3.10 the arguments of a call live until it returns, and PyTorch's own Python code then gives memory back
# in another order: the oracle does so too, under such a Python (tools/oracle/versions.py).
ARGUMENTS_GO_EARLY = sys.version_info >= (3, 11)
ARGUMENTS_LIVE_LONG = "of a Python in which a call's arguments live until it returns, another order is right"
