"""Decomposes window functions, which device-independent C++ builds from other operators.

Source: aten/src/ATen/native/TensorFactories.cpp.
"""

import torch

from simgpu.ops.op_call import decomposition

decomposition(
    "hann_window.default",
    "hann_window.periodic",
    "hamming_window.default",
    "hamming_window.periodic",
    "hamming_window.periodic_alpha",
    "hamming_window.periodic_alpha_beta",
    "blackman_window.default",
    "blackman_window.periodic",
    "bartlett_window.default",
    "bartlett_window.periodic",
)


def _has_numbers(window_length, *options, dtype=None, **more) -> bool:
    """Returns whether windows support the dtype; for any other, PyTorch's own kernel raises the error."""
    return dtype is None or dtype.is_floating_point


@decomposition("kaiser_window.default", "kaiser_window.periodic", "kaiser_window.beta", when=_has_numbers)
def kaiser_window(window_length, periodic=True, beta=12.0, dtype=None, **options):
    """Decomposes kaiser_window: a ramp that the kernel reads, and the window; a periodic one is the start of a longer
    one.
    """
    options["dtype"] = dtype or torch.get_default_dtype()
    if window_length <= 1:
        return torch.ones(window_length, **options)
    ramp = torch.arange(window_length + periodic, **options)
    window = torch.empty_like(ramp)
    return window.narrow(0, 0, window_length) if periodic else window
