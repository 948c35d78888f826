"""Linear layers with quantised weights for inference, with the tensors that servers keep and allocate for them.

`int8` and `fp8` have a float32 scale per output channel, and quantise the input of each matmul with a scale per token,
as vLLM's kernels for compressed-tensors do (vllm/model_executor/layers/quantization/compressed_tensors/schemes). `int4`
is the format of AWQ and GPTQ: groups of 128 inputs share a 16-bit scale and a 4-bit zero point, and the kernel (Marlin)
expands weights in registers, so the input stays in 16 bits. The memory is that of these tensors; nothing is computed.
"""

import torch
from torch import nn

from simgpu.fitting.lora import linear_layers

GROUP = 128
WEIGHTS = ("int8", "int4", "fp8")
NOTE = (
    "Quantised weights are the tensors of their format in all linear layers except the head, and no time is known. "
    "What the kernels need in addition to input and output is not included"
)


class Quantized(nn.Module):
    """A linear layer whose weight has 8 or 4 bits."""

    def __init__(self, base: nn.Linear, kind: str):
        super().__init__()
        self.kind, self.inputs, self.outputs = kind, base.in_features, base.out_features
        device, dtype = base.weight.device, base.weight.dtype
        rows, columns = base.weight.shape
        if kind == "int4":
            groups = -(-columns // GROUP)
            self.register_buffer("weight", torch.empty(-(-columns // 8), rows, dtype=torch.int32, device=device))
            self.register_buffer("scales", torch.empty(groups, rows, dtype=dtype, device=device))
            self.register_buffer("zeros", torch.empty(groups, -(-rows // 8), dtype=torch.int32, device=device))
        else:
            bits = torch.int8 if kind == "int8" else torch.float8_e4m3fn
            self.register_buffer("weight", torch.empty(rows, columns, dtype=bits, device=device))
            self.register_buffer("scales", torch.empty(rows, 1, dtype=torch.float32, device=device))
        self.bias = base.bias

    def forward(self, x):
        """Allocates what the kernels do: the quantised input with its scales, except for int4, and the output."""
        held = None
        if self.kind != "int4":
            tokens = x.numel() // self.inputs
            held = x.new_empty(x.shape, dtype=self.weight.dtype), x.new_empty(tokens, 1, dtype=torch.float32)
        output = x.new_empty(*x.shape[:-1], self.outputs)
        del held
        return output


def quantize(model: nn.Module, kind: str) -> nn.Module:
    """Replaces every linear layer except the head by a quantised one, and returns the model.

    Raises ValueError for a model without linear layers, and for one with experts in parameters of three dimensions,
    which are most of its weights and not linear layers.
    """
    linear = linear_layers(model)
    if not linear:
        raise ValueError("quantised weights are those of linear layers, and the model has none")
    if any(one.ndim == 3 for one in model.parameters()):
        raise ValueError("the experts of this model are not linear layers, and fit does not quantise their weights")
    for parent, name, child in linear:
        setattr(parent, name, Quantized(child, kind))
    return model
