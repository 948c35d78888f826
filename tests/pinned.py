"""A mark for tests that hold the simulated GPU to figures that PyTorch of one version gave."""

from importlib import metadata

import pytest

from tools.oracle.run import DEFAULT_VERSION

of_pinned_torch = pytest.mark.skipif(
    metadata.version("torch").split("+")[0] != DEFAULT_VERSION, reason=f"the figures are of torch {DEFAULT_VERSION}"
)
