"""Estimates what a layer saves for backward, in bytes, by plain arithmetic.

The figures are sums over a layer's operators, for one dtype. Values that are not counts are refused. If a rule depends
on the GPU or the version of torch, its docstring says so.
"""

from __future__ import annotations

import torch

from labkit.formulas import of_counts, tensor


@of_counts
def encoder_layer(
    batch: int, length: int, hidden: int, heads: int, inner: int, attention: str = "eager", dropout: bool = False
) -> int:
    """Returns the bytes that an encoder layer like BERT's saves for backward in float32.

    The input is counted and the result is not. The layer has query, key, value and output Linears of ``hidden``,
    softmax attention with ``heads`` heads, a Linear to ``inner``, GELU, a Linear back, two LayerNorms and two
    residuals, before or after the norms. ``attention`` is ``"eager"`` (operator by operator) or ``"sdpa"``, which
    selects the memory-efficient kernel in float32. ``dropout`` says that dropout is active, after both blocks and on
    the normalised attention scores. Raises ``ValueError`` for any other ``attention``.
    """
    if attention not in ("eager", "sdpa"):
        raise ValueError(f"encoder_layer knows eager and sdpa attention; {attention!r} was given")
    wide, narrow = tensor(batch, length, inner), tensor(batch, length, hidden)
    weights = tensor(batch, heads, length, length)
    kept = 8 * narrow + 2 * wide + 4 * tensor(batch, length)
    # one logsumexp per query, rounded up to 32
    kept += weights if attention == "eager" else tensor(batch, heads, -(-length // 32) * 32)
    if dropout:
        kept += 2 * tensor(batch, length, hidden, dtype=torch.bool)
    if dropout and attention == "eager":
        kept += weights + tensor(batch, heads, length, length, dtype=torch.bool)
    return kept


@of_counts
def attention_kept(
    batch: int,
    heads: int,
    length: int,
    width: int,
    fused: bool = True,
    itemsize: int = 4,
    dropout: bool = False,
    upcast: bool = False,
) -> int:
    """Returns the bytes that softmax attention saves for backward in addition to query, key and value.

    There are ``heads`` heads of ``width`` elements. ``fused`` means the memory-efficient, flash or cuDNN kernel, which
    saves the result and 4 B per query and head. Otherwise the operators run one by one (transformers' eager attention)
    and the normalised scores are saved; with dropout its mask (1 B per score) and its result are saved too. ``upcast``
    says that softmax runs in float32 and its result is converted back, as in LLaMA. The figure is in requested bytes,
    without an attention mask. The memory-efficient kernel rounds the queries up to a multiple of 32, and flash and
    cuDNN save up to 24 B of random-number state.
    """
    result = itemsize * batch * heads * length * width
    if fused:
        return result + 4 * batch * heads * length
    weights = max(itemsize, 4) if upcast else itemsize
    after = 1 + itemsize if dropout else itemsize if upcast and itemsize < 4 else 0
    return result + (weights + after) * batch * heads * length * length


# The number of tensors of the inner width that an MLP saves: those of the activation, and the input of the last Linear.
INNER_TENSORS = {"relu": 1, "gelu": 2, "silu": 2, "swiglu": 4, "gelu written out": 5}


@of_counts
def mlp(tokens: int, width: int, inner: int, activation: str = "gelu", itemsize: int = 2) -> int:
    """Returns the bytes that the MLP of a transformer (Linear, activation, Linear) saves for backward, with its input.

    ``"relu"``, ``"gelu"`` and ``"silu"`` are one operator. ``"swiglu"`` is ``down(silu(gate(x)) * up(x))``, and ``"gelu
    written out"`` is the formula with tanh, operator by operator. The figure is in requested bytes, for one dtype of
    ``itemsize`` bytes and no dropout. Raises ``ValueError`` for any other activation.
    """
    if activation not in INNER_TENSORS:
        raise ValueError(f"mlp knows {', '.join(INNER_TENSORS)}; {activation!r} was given")
    return itemsize * tokens * (width + INNER_TENSORS[activation] * inner)


@of_counts
def gpt_layer(batch: int, length: int, hidden: int, heads: int, attention: str = "eager", dropout: bool = True) -> int:
    """Returns the bytes that a layer like GPT-3's saves for backward in half precision.

    The input is counted and the result is not. The formula is 34·s·b·h + 5·a·s²·b (Korthikanti et al. 2022), plus
    16·s·b for the mean and rstd of LayerNorm. The layer has two LayerNorms, one Linear for query, key and value,
    softmax, and an MLP of 4·h whose GELU is one operator. ``attention`` is ``"eager"``, or ``"flash"``, which saves one
    logsumexp per query and head in place of the scores. Without dropout its masks and copies are not saved. The figure
    is in requested bytes. Raises ``ValueError`` for any other ``attention``.
    """
    if attention not in ("eager", "flash"):
        raise ValueError(f"gpt_layer knows eager and flash attention; {attention!r} was given")
    tokens, scores = batch * length, batch * heads * length**2
    kept = (34 if dropout else 32) * tokens * hidden + 16 * tokens
    if attention == "flash":
        return kept + 4 * tokens * heads + 24  # and the random-number state
    return kept + (5 if dropout else 2) * scores


@of_counts
def gpt_layer_of_a_rank(
    batch: int,
    length: int,
    hidden: int,
    heads: int,
    ranks: int,
    attention: str = "flash",
    sequence: bool = False,
) -> int:
    """Returns the bytes that one of ``ranks`` ranks saves for a layer like GPT-3's under tensor parallelism.

    Otherwise it is as `gpt_layer`. The formula is s·b·h·(10 + 24/t) + 5·a·s²·b/t (Korthikanti et al. 2022), with t =
    ``ranks``: the inputs of norms and Linears, and the dropout masks after attention and MLP, are whole on every rank.
    ``sequence`` adds sequence parallelism as PyTorch's DTensor does it, s·b·h·(4 + 30/t) + 5·a·s²·b/t. Then everything
    is sharded except the gathered inputs of the Linears, which the publication gathers again in backward (34/t). The
    norms' mean and rstd add 16·s·b, or 16·s·b/t with ``sequence``. Biases of the Linears make no difference. Raises
    ``ValueError`` for any other ``attention``, and for heads or (with ``sequence``) a length that t does not divide.
    """
    if attention not in ("eager", "flash"):
        raise ValueError(f"gpt_layer_of_a_rank knows eager and flash attention; {attention!r} was given")
    if ranks < 1 or heads % ranks or (sequence and length % ranks):
        raise ValueError(f"{heads} heads and, with sequence parallel, {length} tokens are cut by ranks={ranks} evenly")
    tokens, scores = batch * length, batch * heads * length**2
    whole, cut = (4, 30) if sequence else (10, 24)
    kept = (whole * ranks + cut) * tokens * hidden // ranks + 16 * tokens // (ranks if sequence else 1)
    if attention == "flash":
        return kept + 4 * tokens * heads // ranks + 24
    return kept + 5 * scores // ranks


@of_counts
def llama_layer(
    batch: int,
    length: int,
    hidden: int,
    heads: int,
    shared_heads: int,
    inner: int,
    head_width: int = 0,
    written_out: bool = False,
) -> int:
    """Returns the bytes that a layer like Llama's saves for backward in bfloat16.

    The input is counted and the result is not. The formula is (12 + 4·g + 8·f/h)·s·b·h with f = ``inner`` and g =
    ``shared_heads / heads``, the ratio of key and value heads to query heads. It covers RMSNorm, rotary positions,
    grouped-query attention and SwiGLU, without biases or dropout. The two norms add 8·s·b, and flash attention (a GPU
    from Ampere on) adds 4·a·s·b. ``head_width`` is hidden / heads if 0. ``written_out`` says that RMSNorm is written
    out in float32 as in transformers, which adds 8·s·b·h. If every layer is checkpointed, a layer saves only 2·s·b·h.
    The figure is in requested bytes, for a head width that is a multiple of 8.
    """
    tokens, width = batch * length, head_width or hidden // heads
    norms = 2 * ((6 if written_out else 2) * tokens * hidden + 4 * tokens)
    attention = 2 * tokens * (hidden + 2 * heads * width + 2 * shared_heads * width) + 4 * tokens * heads + 24
    return norms + attention + mlp(tokens, hidden, inner, "swiglu")
