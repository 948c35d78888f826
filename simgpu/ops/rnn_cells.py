"""Rules for the fused cells of LSTMs and GRUs."""

import torch

from simgpu.ops.op_call import OpCall, decomposition, rule

decomposition("_pack_padded_sequence.default")  # aten/src/ATen/native/PackedSequence.cpp


@rule("_thnn_fused_lstm_cell.default", "_thnn_fused_gru_cell.default")
def cell(call: OpCall) -> None:
    """Rule of RNN.cu: what is saved for backward comes first (aten/src/ATen/native/cuda/RNN.cu)."""
    *state, workspace = call.outputs
    call.allocate_outputs(workspace, *state)


@decomposition("_thnn_fused_lstm_cell_backward_impl.default")
def lstm_cell_backward(grad_hidden, grad_cells, cells_before, cells, workspace, biases):
    """Decomposes _thnn_fused_lstm_cell_backward_impl_cuda: the bias's gradient is the sum of the gates' (RNN.cu)."""
    if grad_hidden is None and grad_cells is None:
        return None, None, None
    gates = torch.empty_like(workspace, memory_format=torch.contiguous_format)
    grad_before = torch.empty_like(cells_before, memory_format=torch.contiguous_format)
    return gates, grad_before, gates.sum(0) if biases else None


@decomposition("_thnn_fused_gru_cell_backward.default")
def gru_cell_backward(grad, workspace, biases):
    """Decomposes _thnn_fused_gru_cell_backward_cuda (RNN.cu)."""
    shape = grad.shape[0], 3 * grad.shape[1]
    input_gates, hidden_gates = workspace.new_empty(shape), workspace.new_empty(shape)
    grad_before = torch.empty_like(grad, memory_format=torch.contiguous_format)
    sums = (input_gates.sum(0), hidden_gates.sum(0)) if biases else (None, None)
    return input_gates, hidden_gates, grad_before, *sums
