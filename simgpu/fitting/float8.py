"""Training with matmuls in 8-bit floats, by dynamic scales of whole tensors.

The layer allocates what torchao's Float8Linear does in eager mode with its default configuration (torchao 0.18,
torchao/float8: float8_linear.py, float8_utils.py, float8_training_tensor.py, float8_ops.py). Autograd saves the input
and the weight in their own dtype, and each of the three matmuls casts both of its operands. A cast needs a float32 copy
of the tensor twice over, because eager mode scales and clamps in separate operators; torch.compile fuses them.
"""

import importlib
import importlib.util

import torch
from torch import nn

from simgpu.engines import STUB

FORWARD, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16
"""Sizes of both operands are multiples of it (ScaledBlas.cpp)."""

SMALLEST = 1e-12
NOTE = (
    "Matmuls in fp8 are those of torchao's Float8Linear with scales of whole tensors, in eager mode unless the plan is "
    "compiled; the head, layers whose sizes are not multiples of 16, and experts without nn.Linear stay as they are"
)


class Float8Linear(nn.Linear):
    """A linear layer whose matmuls are in 8-bit floats."""

    def forward(self, input):
        """Returns input @ weight.T + bias in the dtype of the input, or of autocast."""
        if torch.is_autocast_enabled("cuda"):
            input = input.to(torch.get_autocast_dtype("cuda"))
        output = _Matmul.apply(input, self.weight.t())
        return output if self.bias is None else output + self.bias.to(output.dtype)


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight):
        ctx.save_for_backward(input, weight)
        left, right = _cast(input, FORWARD), _cast(weight, FORWARD)
        flat = left[0].reshape(-1, input.shape[-1]), left[1]
        return _product(flat, right, input.dtype).reshape(*input.shape[:-1], -1)

    @staticmethod
    def backward(ctx, *gradients):
        input, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        left, right = _cast(gradient, GRADIENT), _cast(weight, FORWARD)
        of_input = _product(left, (right[0].t(), right[1]), gradient.dtype).reshape(input.shape)
        flat = input.reshape(-1, input.shape[-1])
        again, other = _cast(gradient, GRADIENT), _cast(flat, FORWARD)
        of_weight = _product((again[0].t(), again[1]), other, gradient.dtype)
        return of_input, of_weight.t()


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a tensor in 8 bits and its scale."""
    largest = torch.finfo(dtype).max
    scale = (largest / torch.max(torch.abs(tensor)).to(torch.float64).clamp(min=SMALLEST)).to(torch.float32)
    scaled = tensor.to(torch.float32) * scale
    return scaled.clamp(-largest, largest).to(dtype), scale


def _product(left: tuple, right: tuple, dtype: torch.dtype) -> torch.Tensor:
    """Multiplies two tensors with their scales; cuBLASLt wants rows of the left and columns of the right contiguous."""
    rows = left[0].contiguous()
    columns = right[0].t().contiguous().t()
    return torch._scaled_mm(rows, columns, scale_a=left[1].reciprocal(), scale_b=right[1].reciprocal(), out_dtype=dtype)


def convert(model: nn.Module, engine: str) -> nn.Module:
    """Replaces the linear layers that compute in fp8, and returns the model.

    The head stays, and so do layers with a size that is not a multiple of 16. On the stub engine the layers are
    torchao's own where that engine has torchao. Raises ValueError if no layer can be converted.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    chosen = {
        name: one
        for name, one in model.named_modules()
        if isinstance(one, nn.Linear) and one is not head and _fits(one) and one.weight.requires_grad
    }
    if not chosen:
        raise ValueError(
            "matmuls in fp8 need linear layers with sizes that are multiples of 16, and the model has none"
        )
    if engine == STUB and importlib.util.find_spec("torchao") is not None:
        library = importlib.import_module("torchao.float8")
        return library.convert_to_float8_training(model, module_filter_fn=lambda module, name: name in chosen)
    for one in chosen.values():
        one.__class__ = Float8Linear
    return model


def check_tokens(batch: int, length: int | None) -> None:
    """Raises ValueError if the tokens of a batch, over which a weight's gradient sums, are not a multiple of 16."""
    if length is not None and batch * length % MULTIPLE:
        tokens = batch * length
        raise ValueError(
            f"matmuls in fp8 need a multiple of {MULTIPLE} tokens, and batch {batch} × {length} is {tokens}"
        )


def _fits(layer: nn.Linear) -> bool:
    return layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0
