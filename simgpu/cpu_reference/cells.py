"""The fused cells of LSTMs and GRUs, forward and backward (aten/src/ATen/native/cuda/RNN.cu)."""

from __future__ import annotations

import torch

from simgpu.cpu_reference.cpu_call import Call, cpu_impl


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in the accumulation dtype."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _sum(*tensors: torch.Tensor | None) -> torch.Tensor:
    there = [_wide(tensor) for tensor in tensors if tensor is not None]
    return there[0] if len(there) == 1 else there[0] + _sum(*there[1:])


@cpu_impl("_thnn_fused_lstm_cell.default")
def lstm(call: Call):
    """Returns the hidden and cell states, and for the backward pass the four activated gates."""
    of_input, of_hidden, cells, *biases = call["input_gates", "hidden_gates", "cx", "input_bias", "hidden_bias"]
    enter, forget, new, leave = _sum(of_input, of_hidden, *biases).chunk(4, 1)
    gates = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    after = gates[1] * _wide(cells) + gates[0] * gates[2]
    return [gates[3] * after.tanh(), after, torch.cat(gates, 1)]


@cpu_impl("_thnn_fused_lstm_cell_backward_impl.default")
def lstm_backward(call: Call):
    """Returns the gradients of the gates, of the previous cells, and of each bias."""
    grad_hidden, grad_cells, *kept = call["grad_hy", "grad_cy", "cx", "cy", "workspace"]
    if grad_hidden is None and grad_cells is None:
        return [None, None, None]
    before, cells, workspace = map(_wide, kept)
    zeros = torch.zeros_like(before)
    grad_hidden = zeros if grad_hidden is None else _wide(grad_hidden)
    enter, forget, new, leave = workspace.chunk(4, 1)
    squashed = cells.tanh()
    through = grad_hidden * leave * (1 - squashed**2) + (zeros if grad_cells is None else _wide(grad_cells))
    gates = torch.cat(
        [
            through * new * enter * (1 - enter),
            through * before * forget * (1 - forget),
            through * enter * (1 - new**2),
            grad_hidden * squashed * leave * (1 - leave),
        ],
        1,
    )
    return [gates, through * forget, gates.sum(0) if call["has_bias"] else None]


@cpu_impl("_thnn_fused_gru_cell.default")
def gru(call: Call):
    """Returns the hidden state and a workspace for the backward pass.

    The workspace holds the gates, the previous state, and the values that the reset gate multiplies.
    """
    of_input, of_hidden, before, *biases = call["input_gates", "hidden_gates", "hx", "input_bias", "hidden_bias"]
    of_input, of_hidden = _sum(of_input, biases[0]).chunk(3, 1), _sum(of_hidden, biases[1]).chunk(3, 1)
    before = _wide(before)
    reset = (of_input[0] + of_hidden[0]).sigmoid()
    update = (of_input[1] + of_hidden[1]).sigmoid()
    new = (of_input[2] + reset * of_hidden[2]).tanh()
    return [new + update * (before - new), torch.cat([reset, update, new, before, of_hidden[2]], 1)]


@cpu_impl("_thnn_fused_gru_cell_backward.default")
def gru_backward(call: Call):
    """Returns the gradients of the input and hidden gates, of the previous hidden state, and of both biases."""
    grad, workspace = map(_wide, call["grad_hy", "workspace"])
    reset, update, new, before, of_hidden = workspace.chunk(5, 1)
    of_update = grad * (before - new) * (1 - update) * update
    of_new = grad * (1 - update) * (1 - new**2)
    of_reset = of_new * of_hidden * (1 - reset) * reset
    input_gates = torch.cat([of_reset, of_update, of_new], 1)
    hidden_gates = torch.cat([of_reset, of_update, of_new * reset], 1)
    sums = [input_gates.sum(0), hidden_gates.sum(0)] if call["has_bias"] else [None, None]
    return [input_gates, hidden_gates, grad * update, *sums]
