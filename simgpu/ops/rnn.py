"""CUDA's decomposition of LSTMs and GRUs without cuDNN: each step is one fused kernel.

aten/src/ATen/native/RNN.cpp calls is_cuda() inside its loops over layers, directions and steps, so this module repeats
the loops. Tensors are freed in the order in which C++ frees them at the end of a scope. With cuDNN enabled, a real GPU
runs the whole sequence in cuDNN, and what cuDNN reserves for the backward pass is known only on a GPU. These loops then
approximate it, and the difference is reported.
"""

from typing import NamedTuple

import torch

from simgpu import unmodeled
from simgpu.device import machine as machines
from simgpu.ops.dispatcher import cuda_composite, decomposed, meta
from simgpu.ops.op_call import OpCall, decomposition, rule

_aten = torch.ops.aten

GRU_WORKSPACE = 5  # numbers saved per element of the hidden state: RNN.cu, GRU_WORKSPACE_MULTIPLIER


class Weights(NamedTuple):
    """Holds the weights of one layer in one direction (RNN.cpp, CellParams)."""

    of_input: torch.Tensor
    of_hidden: torch.Tensor
    input_bias: torch.Tensor | None = None
    hidden_bias: torch.Tensor | None = None
    projection: torch.Tensor | None = None


def _lstm_step(x, state, weights: Weights):
    """Computes one step of an LSTM from `x` [batch, input size] and a state, and returns the next state (RNN.cpp,
    LSTMCell).

    A state is (cells, hidden) here and (hidden, cells) in C++. C++ destroys a tuple from its last element and Python
    from its first, so this order frees the tensors as C++ does. The two matmuls run in the order in which GCC evaluates
    the arguments of a call: the last one first.
    """
    cells, hidden = state
    of_input = torch.matmul(x, weights.of_input.t())
    of_hidden = torch.matmul(hidden, weights.of_hidden.t())
    result, cells, workspace = _aten._thnn_fused_lstm_cell(
        of_input, of_hidden, cells, weights.input_bias, weights.hidden_bias
    )
    if weights.projection is not None:
        result = torch.matmul(result, weights.projection.t())
    del workspace, of_hidden, of_input
    return cells, result


def _gru_step(x, state, weights: Weights):
    """Computes one step of a GRU from `x` [batch, input size] and a state (hidden,), and returns the next state.

    (RNN.cpp, GRUCell)
    """
    (hidden,) = state
    of_input = torch.matmul(x, weights.of_input.t())
    of_hidden = torch.matmul(hidden, weights.of_hidden.t())
    result, workspace = _aten._thnn_fused_gru_cell(of_input, of_hidden, hidden, weights.input_bias, weights.hidden_bias)
    del workspace, of_hidden, of_input
    return (result,)


def _gathered(params, biases: bool, projections: bool = False) -> list[Weights]:
    """Returns the flat list `params` as one `Weights` per layer and direction (RNN.cpp, gather_params)."""
    each = 2 + 2 * biases + projections
    groups = [params[start : start + each] for start in range(0, len(params), each)]
    if biases or not projections:
        return [Weights(*group) for group in groups]
    return [Weights(*group[:2], projection=group[2]) for group in groups]


def _let_go(tensors: list) -> None:
    """Empties a list from its beginning, as C++ empties a vector; Python would start at the end."""
    tensors.reverse()
    tensors.clear()


def _steps(cell, inputs, state, weights: Weights):
    """Runs `cell` over a list of steps; returns the output of each step and the last state (RNN.cpp, FullLayer).

    Raises RuntimeError, as PyTorch does, for an empty list.
    """
    outputs = []
    for x in inputs:
        state = cell(x, state, weights)
        outputs.append(state[-1])
    if not outputs:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    return outputs, state


def _layer(cell, x, state, weights: Weights):
    """Runs one layer in one direction; returns the stacked outputs of all steps and the last state (RNN.cpp,
    FullLayer).
    """
    outputs, state = _steps(cell, x.unbind(0), state, weights)
    stacked = torch.stack(outputs, 0)
    _let_go(outputs)
    return stacked, state


def _both_ways(cell, x, states, weights):
    """Runs one layer in both directions; returns their concatenated outputs and both last states
    (FullBidirectionalLayer).
    """
    inputs = x.unbind(0)
    forth, forth_state = _steps(cell, inputs, states[0], weights[0])
    forth_stacked = torch.stack(forth, 0)
    back, back_state = _steps(cell, inputs[::-1], states[1], weights[1])
    back.reverse()
    back_stacked = torch.stack(back, 0)
    joined = torch.cat([forth_stacked, back_stacked], -1)
    del back_stacked
    _let_go(back)
    del forth_stacked
    _let_go(forth)
    return joined, (forth_state, back_state)


def _cut(state, start: int, end: int):
    return tuple(one.narrow(0, start, end - start) for one in state)


def _joined(states):
    """Concatenates several states along the batch dimension (RNN.cpp, hidden_concat)."""
    return tuple(torch.cat(parts, 0) for parts in zip(*states, strict=True))


def _packed(cell, x, state, weights: Weights, batch_sizes):
    """Runs one layer over packed sequences, removing a sequence from the state when it ends (RNN.cpp, PackedLayer)."""
    outputs, ended, offset, last = [], [], 0, batch_sizes[0]
    for size in batch_sizes:
        step = x.narrow(0, offset, size)
        offset += size
        if size < last:
            ended.append(_cut(state, size, last))
            state = _cut(state, 0, size)
        last = size
        state = cell(step, state, weights)
        outputs.append(state[-1])
    ended.append(state)
    ended.reverse()
    data, state = torch.cat(outputs, 0), _joined(ended)
    _let_go(ended)
    _let_go(outputs)
    return data, state


def _packed_backwards(cell, x, first, weights: Weights, batch_sizes):
    """Runs one layer from the last step to the first, adding a sequence to the state when it starts
    (ReversedPackedLayer).
    """
    outputs, offset, last = [], x.shape[0], batch_sizes[-1]
    state = _cut(first, 0, last)
    for size in reversed(batch_sizes):
        if size > last:
            state = _joined([state, _cut(first, last, size)])
        step = x.narrow(0, offset - size, size)
        offset -= size
        last = size
        state = cell(step, state, weights)
        outputs.append(state[-1])
    outputs.reverse()
    data = torch.cat(outputs, 0)
    _let_go(outputs)
    return data, state


def _packed_both_ways(cell, x, states, weights, batch_sizes):
    """Runs one layer over packed sequences in both directions (PackedBidirectionalLayer)."""
    forth, forth_state = _packed(cell, x, states[0], weights[0], batch_sizes)
    back, back_state = _packed_backwards(cell, x, states[1], weights[1], batch_sizes)
    joined = torch.cat([forth, back], -1)
    del back, forth
    return joined, (forth_state, back_state)


def _stack(cell, x, states, weights, layers, dropout, train, bidirectional, batch_sizes=None):
    """Runs all layers with dropout between them; returns the last output and the final state of each layer and
    direction.

    Raises RuntimeError, as PyTorch does, if the number of states or weights differs from the number of layers (RNN.cpp,
    apply_layer_stack).
    """
    if bidirectional:
        states, weights = (list(zip(items[::2], items[1::2], strict=True)) for items in (states, weights))
    if not layers == len(states) == len(weights):
        raise RuntimeError(f"Expected more {'hidden states' if layers != len(states) else 'weights'} in stacked_rnn")
    if batch_sizes is None:
        layer, more = (_both_ways if bidirectional else _layer), ()
    else:
        layer, more = (_packed_both_ways if bidirectional else _packed), (batch_sizes.tolist(),)
    final = []
    for number in range(layers):
        x, state = layer(cell, x, states[number], weights[number], *more)  # pyright: ignore[reportArgumentType]
        final += state if bidirectional else (state,)
        if dropout and train and number < layers - 1:
            x = torch.dropout(x, dropout, True)
    return x, final


def _lstm(x, hx, params, biases, *options):
    """Runs an LSTM and returns the output, the last hidden and the last cell states (_lstm_impl)."""
    hidden, cells = hx
    weights = _gathered(params, biases, hidden.shape[2] != cells.shape[2])
    layers = hidden.unbind(0)  # unbound before the cells, because the graph goes back in reverse order
    states = list(zip(cells.unbind(0), layers, strict=True))
    del layers
    x, final = _stack(_lstm_step, x, states, weights, *options)
    cells, hidden = ([state[i] for state in final] for i in range(2))
    final.clear()
    cells_stacked = torch.stack(cells, 0)
    hidden_stacked = torch.stack(hidden, 0)
    _let_go(cells)
    _let_go(hidden)
    return x, hidden_stacked, cells_stacked


def _gru(x, hx, params, biases, *options):
    """Runs a GRU and returns the output and the last hidden states (_rnn_impl_with_concat)."""
    states = [(hidden,) for hidden in hx.unbind(0)]
    x, final = _stack(_gru_step, x, states, _gathered(params, biases), *options)
    stacked = torch.stack([state[0] for state in final], 0)
    _let_go(final)
    return x, stacked


def _batch_first(run, x, hx, params, biases, layers, dropout, train, bidirectional, batch_first):
    x = x.transpose(0, 1) if batch_first else x
    x, *final = run(x, hx, params, biases, layers, dropout, train, bidirectional)
    return (x.transpose(0, 1) if batch_first else x, *final)


def _tell_of_cudnn(data: torch.Tensor) -> None:
    """Reports that cuDNN is not modelled if a real GPU would run this RNN with it (at::cudnn_is_acceptable)."""
    if torch._C._get_cudnn_enabled() and data.numel() > 0 and data.dtype.is_floating_point:
        machines.on().unmodeled.add("an RNN", unmodeled.CUDNN_RNN, lower_bound=False)


def _told(operator):
    """Returns a branch for a simple RNN (tanh or ReLU), which PyTorch decomposes itself; cuDNN's absence is reported
    first.
    """

    def run(*args):
        _tell_of_cudnn(args[0])
        return decomposed(operator, args, {})

    return run


for _name in ("rnn_tanh", "rnn_relu"):
    for _overload in ("input", "data"):
        cuda_composite(f"{_name}.{_overload}")(_told(getattr(getattr(_aten, _name), _overload)))


@cuda_composite("lstm.input")
def lstm(*args):
    """Runs nn.LSTM on padded sequences; returns the output and the last hidden and cell states."""
    _tell_of_cudnn(args[0])
    return _batch_first(_lstm, *args)


@cuda_composite("gru.input")
def gru(*args):
    """Runs nn.GRU on padded sequences; returns the output and the last hidden state."""
    _tell_of_cudnn(args[0])
    return _batch_first(_gru, *args)


@cuda_composite("lstm.data")
def packed_lstm(data, batch_sizes, hx, params, *options):
    """Runs nn.LSTM on packed sequences."""
    _tell_of_cudnn(data)
    return _lstm(data, hx, params, *options, batch_sizes)


@cuda_composite("gru.data")
def packed_gru(data, batch_sizes, hx, params, *options):
    """Runs nn.GRU on packed sequences."""
    _tell_of_cudnn(data)
    return _gru(data, hx, params, *options, batch_sizes)


@cuda_composite("lstm_cell")
def lstm_cell(x, hx, *weights):
    """Runs one step of nn.LSTMCell."""
    cells, hidden = _lstm_step(x, (hx[1], hx[0]), Weights(*weights))
    return hidden, cells


@cuda_composite("gru_cell")
def gru_cell(x, hx, *weights):
    """Runs one step of nn.GRUCell."""
    return _gru_step(x, (hx,), Weights(*weights))[0]


@meta("_thnn_fused_lstm_cell")
def fused_lstm_cell(input_gates, hidden_gates, cells, input_bias=None, hidden_bias=None):
    """Returns the hidden state, the cells and the workspace (aten/src/ATen/native/cuda/RNN.cu)."""
    contiguous = torch.contiguous_format
    hidden = torch.empty_like(cells, memory_format=contiguous)
    return hidden, torch.empty_like(hidden), torch.empty_like(input_gates, memory_format=contiguous)


@meta("_thnn_fused_gru_cell")
def fused_gru_cell(input_gates, hidden_gates, hidden, input_bias=None, hidden_bias=None):
    """Returns the hidden state and the workspace (aten/src/ATen/native/cuda/RNN.cu)."""
    workspace = hidden.new_empty(hidden.shape[0], hidden.shape[1] * GRU_WORKSPACE)
    return torch.empty_like(hidden, memory_format=torch.contiguous_format), workspace


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
