"""The inference fast path of nn.TransformerEncoderLayer and nn.MultiheadAttention, which CUDA computes in C++.

(aten/src/ATen/native/transformers/transformer.cpp, sdpa.cpp and cuda/attention.cu)
"""

import torch
from torch.nn.attention import SDPBackend

from simgpu.device import machine as machines
from simgpu.errors import NoValueError
from simgpu.handlers import handles
from simgpu.ops import attention
from simgpu.ops.op_call import decomposition
from simgpu.storage import storage_map

FUSED = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)


@handles(torch._nested_tensor_from_mask_left_aligned)
def left_aligned(mode, function, args, kwargs):
    """Wraps torch._nested_tensor_from_mask_left_aligned, so that the simulated GPU never drops the padding.

    nn.TransformerEncoder calls it in evaluation to decide that (native/nested/NestedTensorTransformerFunctions.cpp; the
    order of requests is that of the oracle). Nested tensors with strided layout are not modelled. If CUDA would create
    one, the rows stay padded and the difference is reported.
    """
    mask = kwargs["mask"] if "mask" in kwargs else args[1]
    if not storage_map.on_current(mask):
        return function(*args, **kwargs)
    end = torch.zeros(mask.shape[0], 1, dtype=torch.bool, device=mask.device)
    joined = torch.cat([mask, end], 1)
    numbers = joined.to(torch.int32)
    first = numbers.argmin(1)
    del numbers, joined
    lengths = mask.cumsum(1)
    try:
        dropped = torch.equal(lengths.select(1, -1), first)
    except NoValueError:
        dropped = True
    del first, end
    if dropped:
        why = "that CUDA drops the padding in evaluation (nested tensors; here padded rows are computed too)"
        machines.on().unmodeled.add("nn.TransformerEncoder", why, lower_bound=False)
    return False


@decomposition("_transformer_encoder_layer_fwd.default")
def encoder_layer(
    src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1,
    norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None,
    mask_type=None,
):  # fmt: skip
    """Decomposes transformer_encoder_layer_forward: attention and the two linear layers, each with an in-place
    addition.
    """

    def normed(tensor, weight, bias):
        return torch.layer_norm(tensor, [embed_dim], weight, bias, eps)

    x = normed(src, norm_weight_1, norm_bias_1) if norm_first else src
    projections = qkv_weight, qkv_bias, proj_weight, proj_bias
    x = self_attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]
    x.add_(src)
    if not norm_first:
        x = normed(x, norm_weight_1, norm_bias_1)
    before = x
    if norm_first:
        x = normed(x, norm_weight_2, norm_bias_2)
    rows = x.view(-1, embed_dim)
    hidden = torch._addmm_activation(ffn_bias_1, rows, ffn_weight_1.t(), use_gelu=use_gelu)
    del rows
    result = torch.addmm(ffn_bias_2, hidden, ffn_weight_2.t()).view(src.shape)
    del hidden
    x = result
    x.add_(before)
    return x if norm_first else normed(x, norm_weight_2, norm_bias_2)


@decomposition("_native_multi_head_attention.default")
def self_attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None,
    need_weights=True, average_attn_weights=True, mask_type=None,
):  # fmt: skip
    """Decomposes native_multi_head_attention_cuda.

    It uses a fused backend if one accepts the call and the weights are not requested. The head size may be any.
    """
    batch, length, _ = query.shape
    size = embed_dim // num_head
    if query is key is value and mask is None and not need_weights:
        heads = query.view(batch, -1, num_head, size).transpose(1, 2)
        call = attention.Call(heads, heads, heads, None, 0.0, False, False)
        if attention.choose(call, machines.on()) in FUSED:
            parts = torch._C._nn.linear(query, qkv_weight, qkv_bias).chunk(3, -1)  # pyright: ignore[reportAttributeAccessIssue]
            parts = [part.view(batch, -1, num_head, size).transpose(1, 2) for part in parts]
            found = torch._C._nn.scaled_dot_product_attention(*parts)  # pyright: ignore[reportAttributeAccessIssue]
            mixed = found.transpose(1, 2).reshape(batch, -1, embed_dim)  # a copy if the heads were padded
            output = torch._C._nn.linear(mixed, proj_weight, proj_bias)  # pyright: ignore[reportAttributeAccessIssue]
            del mixed
            del found
            del parts
            return output, None
    packed = torch.matmul(query, qkv_weight.t())
    parts = packed.new_empty(3 * batch, num_head, length, size)  # _transform_bias_rescale_qkv, one kernel
    del packed
    q, k, v = (part.reshape(-1, length, size) for part in parts.split(batch))
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, num_head, length, length)
    as_bool = mask if mask is None or mask.dtype == torch.bool else mask.to(torch.bool)
    weights = masked_softmax(scores, as_bool, mask_type)
    del scores, as_bool
    torch.bmm(weights.view(-1, length, length), v, out=q)
    if not need_weights:
        weights = None
    mixed = q.view(batch, num_head, length, size).transpose(1, 2).reshape(-1, embed_dim)
    output = torch.addmm(proj_bias, mixed, proj_weight.t()).view(batch, length, embed_dim)
    del mixed
    if weights is not None and average_attn_weights:
        weights = weights.sum(1)
        weights /= num_head
    return output, weights


def masked_softmax(scores, mask, mask_type):
    """Computes the softmax of the scores and returns it; in place if `mask` is None.

    With a mask, one kernel handles rows that fit a thread block. For longer rows plain operators run, and their result
    replaces an output that was allocated for that kernel.
    """
    if mask is None:
        return torch._softmax(scores, -1, False, out=scores)
    keys = scores.shape[-1]
    output = torch.empty_like(scores)
    if keys > 1024 or keys * scores.element_size() > 4096 or not mask.is_contiguous():
        if mask_type == 1:
            mask = mask.view(mask.shape[0], 1, 1, keys)
        output = torch.softmax(scores.masked_fill(mask, float("-inf")), -1)
    return output
