"""Views that reach beyond their storage are refused as on CUDA; texts are the oracle's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import labkit

TEXT = (
    "setStorage: sizes [40, 1], strides [1, 1], storage offset 3, and itemsize 4 requiring a storage size of 172 are "
    "out of bounds for storage of size 136"
)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.as_strided((40, 1), (1, 1), 3),
        lambda x: torch.as_strided(x, (40, 1), (1, 1), 3),
        lambda x: x[3:].as_strided((40, 1), (1, 1)),
        lambda x: x.as_strided_((40, 1), (1, 1), 3),
        lambda x: torch.as_strided_copy(x, (40, 1), (1, 1), 3),
    ],
)
def test_a_view_beyond_its_storage(view):
    with labkit.simulated_gpu("H100"):
        x = torch.zeros(34, device="cuda")
        with pytest.raises(RuntimeError) as caught:
            view(x)
        assert str(caught.value) == TEXT
        assert x.shape == (34,)


def test_what_pytorch_allows():
    with labkit.simulated_gpu("H100"):
        x = torch.zeros(34, 1, device="cuda")
        assert x.as_strided((40, 0), (1, 1), 300).numel() == 0
        x.resize_(40, 2)
        assert x.as_strided((40, 2), (2, 1)).shape == (40, 2)
        assert torch.empty(2, device="meta").as_strided((5, 5), (5, 1)).shape == (5, 5)  # PyTorch's own


@given(st.lists(st.integers(0, 6), min_size=1, max_size=3), st.integers(0, 20), st.data())
def test_exactly_what_a_host_tensor_allows(shape, offset, data):
    strides = [data.draw(st.integers(0, 6)) for _ in shape]
    host = torch.zeros(30)
    with labkit.simulated_gpu("H100"):
        here = torch.zeros(30, device="cuda")
        outcomes = []
        for tensor in (host, here):
            try:
                outcomes.append(tensor.as_strided(shape, strides, offset).stride())
            except RuntimeError as error:
                outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
