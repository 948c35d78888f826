"""Tensor parallelism of a server: each GPU holds a part of every layer's weights and of the vocabulary.

The rules are those of vLLM (vllm/model_executor/layers: linear.py, vocab_parallel_embedding.py, fused_moe). GPUs share
the query heads and the columns of an MLP. With fewer key heads than GPUs, each GPU holds a copy of one head. The
projections into the compressed vectors of latent attention are whole on each GPU. The vocabulary is padded to a
multiple of 64. An all-reduce after each attention and MLP allocates its result, and each GPU gathers the logits.
"""

from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from simgpu.fitting.experts import experts_of
from simgpu.fitting.lora import linear_layers
from simgpu.fitting.paged import key_heads

OUTPUTS = ("q_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj")
"""Linear layers whose outputs the GPUs share."""

KEYS = ("k_proj", "v_proj")
"""Linear layers whose outputs the GPUs share, or hold copies of with fewer key heads than GPUs."""

INPUTS = ("o_proj", "down_proj")
"""Linear layers whose inputs the GPUs share, so that their results are summed."""

WHOLE = ("q_a_proj", "kv_a_proj_with_mqa", "shared_expert_gate")
"""Linear layers that are whole on each GPU."""

PADDING = 64
"""The entries of the vocabulary are padded to a multiple of this number, as in vLLM."""

NOTE = (
    "All GPUs need the same memory. Buffers of NCCL and of a server's own all-reduce are not included: 0.25 GiB in a "
    "log of vLLM of February 2025, and more in older ones"
)


def divide(model: nn.Module, config, gpus: int) -> nn.Module:
    """Keeps one GPU's part of a model of transformers on the meta device, adds the collectives, and returns the model.

    Raises ValueError for a number of GPUs that cannot share the model's heads or columns equally, and for layers that
    are not modelled.
    """
    if config.num_attention_heads % gpus:
        raise ValueError(f"{gpus} GPUs cannot share {config.num_attention_heads} attention heads equally")
    refused = [style for style in (getattr(config, "base_model_tp_plan", None) or {}).values() if "gather" in style]
    if refused:
        raise ValueError("the attention of this model needs all heads on each GPU, so fit does not divide it")
    summed: set[nn.Module] = set()
    for parent, name, layer in linear_layers(model):
        if name in OUTPUTS:
            _cut(layer, 0, gpus, name)
        elif name in KEYS:
            _cut(layer, 0, key_heads(config) // key_heads(config, gpus), name)
        elif name in INPUTS:
            _cut(layer, 1, gpus, name)
            summed.add(parent)
        elif name not in WHOLE:
            raise ValueError(f"fit does not know how GPUs share a layer called {name!r}: leave ranks out")
    for experts in experts_of(model):
        _cut_experts(experts, gpus)
        summed.add(experts)
    if not summed:
        raise ValueError("fit does not know how GPUs share the layers of this model: leave ranks out")
    for module in summed:
        module.register_forward_hook(_sum)
    _cut_vocabulary(model, gpus)
    return model


def _cut(layer: Any, dimension: int, parts: int, name: str) -> None:
    """Keeps a part of a layer's outputs (dimension 0) or inputs (dimension 1)."""
    layer.weight = _part(layer.weight, dimension, parts, name)
    layer.out_features, layer.in_features = layer.weight.shape
    if dimension == 0 and layer.bias is not None:
        layer.bias = _part(layer.bias, 0, parts, name)


def _part(parameter: nn.Parameter, dimension: int, parts: int, name: str) -> nn.Parameter:
    shape = list(parameter.shape)
    if shape[dimension] % parts:
        raise ValueError(f"{parts} GPUs cannot share the {shape[dimension]} elements of {name} equally")
    shape[dimension] //= parts
    return nn.Parameter(parameter.new_empty(shape), requires_grad=parameter.requires_grad)


def _cut_experts(experts: Any, gpus: int) -> None:
    """Keeps a part of the columns of each expert. `is_transposed` is transformers' order of their dimensions."""
    outputs = 2 if getattr(experts, "is_transposed", False) else 1
    dimensions = {"gate_up_proj": outputs, "gate_up_proj_bias": 1, "down_proj": 3 - outputs}
    for name, dimension in dimensions.items():
        if isinstance(getattr(experts, name, None), nn.Parameter):
            setattr(experts, name, _part(getattr(experts, name), dimension, gpus, name))


def _cut_vocabulary(model: Any, gpus: int) -> None:
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    vocabulary, width = embedding.weight.shape
    rows = -(-vocabulary // PADDING) * PADDING
    if rows % gpus:
        raise ValueError(f"{gpus} GPUs cannot share a vocabulary of {rows:,} (with padding) equally")
    tied = head is not None and head.weight is embedding.weight
    embedding.weight = nn.Parameter(embedding.weight.new_empty(rows // gpus, width))
    embedding.num_embeddings, embedding.padding_idx = rows // gpus, None
    embedding.register_forward_hook(_sum)
    if head is not None:
        head.weight = embedding.weight if tied else nn.Parameter(head.weight.new_empty(rows // gpus, width))
        head.out_features = rows // gpus
        head.register_forward_hook(lambda module, args, output: _gather(output)[..., :vocabulary])


def _sum(module: nn.Module, args, output):
    """Returns a layer's output, summed over the GPUs out of place."""
    first, *rest = output if isinstance(output, tuple) else (output,)
    total = first.clone()
    dist.all_reduce(total)
    return (total, *rest) if isinstance(output, tuple) else total


def _gather(logits: torch.Tensor) -> torch.Tensor:
    """Returns the logits of the whole vocabulary from those of each GPU's part of it."""
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # newer name
    parts = logits.new_empty(dist.get_world_size(), *logits.shape)
    gather(parts, logits.contiguous())
    return parts.movedim(0, -2).flatten(-2)
