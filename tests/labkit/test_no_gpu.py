"""Without a GPU, real or simulated, the front says what to do."""

import pytest
import torch

from labkit.ledger import Ledger


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_ledger_wants_a_gpu():
    with pytest.raises(RuntimeError, match=r"call labkit\.use_gpu"):
        Ledger()
