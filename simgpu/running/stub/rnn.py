"""Recurrent networks on the stub engine: PyTorch's own kernels run in place of cuDNN's, as the meta engine has it.

Only a GPU knows how large cuDNN's weight buffer, workspace and reserve are. PyTorch's own kernels may need more or
less, so the report calls the figures of such a run "about" right.
"""

from __future__ import annotations

from functools import wraps
from types import ModuleType

RECURRENT = "recurrent"
"""The name of this kind of work among the libraries that a program called."""

NAMES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""PyTorch's recurrent networks (torch/nn/modules/rnn.py calls them by torch._VF)."""


class WithoutCuDNN:
    """Switches cuDNN off inside of recurrent networks. `used`: whether one ran that cuDNN would have run."""

    def __init__(self):
        self.used = False

    def torch_imported(self, torch: ModuleType) -> None:
        """Wraps the functions, and what decides whether a module's weights are made one block for cuDNN."""
        functions = torch._VF.vf if hasattr(torch._VF, "vf") else torch._VF
        for name in NAMES:
            wrapped = self._wrapped(torch, getattr(functions, name))
            setattr(torch._VF, name, wrapped)
            setattr(torch, name, wrapped)
        rnn, real = torch.nn.modules.rnn, torch.nn.RNNBase.flatten_parameters

        @wraps(real)
        def flatten_parameters(module):
            if any(one.is_cuda for one in module._flat_weights if one is not None):
                return None
            return real(module)

        rnn.RNNBase.flatten_parameters = flatten_parameters

    def _wrapped(self, torch, real):
        @wraps(real)
        def call(input, *args, **kwargs):
            if not input.is_cuda or not torch._C._get_cudnn_enabled():
                return real(input, *args, **kwargs)
            self.used = True
            torch._C._set_cudnn_enabled(False)
            try:
                return real(input, *args, **kwargs)
            finally:
                torch._C._set_cudnn_enabled(True)

        return call
