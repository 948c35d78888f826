"""Fused attention, forward and backward: the CPU's own fused kernel if it accepts the call, else plain operators.

Dropout draws a seed and stores it in the outputs where CUDA's kernels return their own (philox_seed, rng_state). So the
backward pass has the same mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from simgpu.cpu_reference.cpu_call import Call, cpu_impl

_aten = torch.ops.aten


class Attention(NamedTuple):
    """Holds the arguments of forward and backward. `mask` is added to the scores."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    scale: float | None

    @property
    def factor(self) -> float:
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale

    def fits(self) -> bool:
        """Returns whether the CPU's fused kernel accepts the call (sdp_utils_cpp.cpp)."""
        sizes = {one.shape[-1] for one in (self.query, self.key, self.value)}
        return not self.dropout and len(sizes) == 1 and 0 not in (*self.query.shape, *self.key.shape)

    def dense(self) -> Attention:
        """Returns the same call with stride 1 in the last dim, as that kernel requires."""
        given = [one if one.stride(-1) == 1 else one.contiguous() for one in self[:3]]
        return self._replace(query=given[0], key=given[1], value=given[2])

    def repeated(self) -> tuple[torch.Tensor, ...]:
        """Returns query, keys and values in the accumulation dtype, with keys and values repeated to one head per query
        head.
        """
        heads = self.query.shape[1]
        wide = [one.float() if one.dtype in (torch.float16, torch.bfloat16) else one for one in self[:3]]
        return wide[0], *(one.repeat_interleave(heads // one.shape[1], 1) for one in wide[1:])

    def kept(self, seed: int, scores: torch.Tensor) -> torch.Tensor | None:
        """Returns the factor by which dropout multiplies the weights, or None without dropout."""
        if not self.dropout:
            return None
        generator = torch.Generator("cpu").manual_seed(seed)
        drawn = torch.rand(scores.shape, generator=generator, dtype=torch.float32, device="cpu")
        return (drawn >= self.dropout).to(scores.dtype) / (1 - self.dropout)

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        scores = query @ key.mT * self.factor
        if self.causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").tril().logical_not()
            scores = scores.masked_fill(hidden, float("-inf"))
        return scores if self.mask is None else scores + self.mask


def forward(of: Attention, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output and the log-sum-exp of the scores, [batch, heads, queries]."""
    if of.fits():
        of = of.dense()
        given = (*of[:3], 0.0, of.causal)
        return _aten._scaled_dot_product_flash_attention_for_cpu(*given, attn_mask=of.mask, scale=of.scale)
    query, key, value = of.repeated()
    scores = of.scores(query, key)
    weights = torch._safe_softmax(scores, -1)
    kept = of.kept(seed, scores)
    output = (weights if kept is None else weights * kept) @ value
    return output.to(of.query.dtype), scores.logsumexp(-1)


def backward(of: Attention, grad, output, logarithms, seed: int, with_mask: bool = False):
    """Returns the gradients of query, keys and values, and of the mask if `with_mask`, else None."""
    logarithms = logarithms.reshape(*logarithms.shape[:2], -1)[..., : of.query.shape[2]]
    if of.fits() and not with_mask:
        of = of.dense()
        given = grad, *of[:3], output, logarithms, 0.0, of.causal
        found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(*given, attn_mask=of.mask, scale=of.scale)
        return (*found, None)
    query, key, value = of.repeated()
    grad = grad.to(query.dtype)
    scores = of.scores(query, key)
    weights = torch._safe_softmax(scores, -1)
    kept = of.kept(seed, scores)
    of_weights = grad @ value.mT
    if kept is not None:
        of_weights = of_weights * kept
    of_value = (weights if kept is None else weights * kept).mT @ grad
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    of_query, of_key = of_scores @ key * of.factor, of_scores.mT @ query * of.factor
    found = [of_query, _summed(of_key, of.key), _summed(of_value, of.value)]
    return (*(one.to(of.query.dtype) for one in found), of_scores if with_mask else None)


def _summed(grad: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of keys or values, summed over the query heads that share a head."""
    if grad.shape[1] == of.shape[1]:
        return grad
    return grad.unflatten(1, (of.shape[1], -1)).sum(2)


def _drawn(dropout: float) -> int:
    return int(torch.randint(2**62, (), device="cpu")) if dropout else 0


def _with_seed(state: torch.Tensor, seed: int) -> torch.Tensor:
    state.view(torch.int64).fill_(seed)
    return state


def _seed_of(state: torch.Tensor) -> int:
    return int(state.view(torch.int64).flatten()[0]) if state.numel() else 0


def _padded(found: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns the log-sum-exp in the layout of a CUDA kernel: longer rows, an extra dim, or no elements."""
    if like.numel():
        like.view(*found.shape[:2], -1)[..., : found.shape[2]].copy_(found)
    return like


def _given(call: Call, mask: torch.Tensor | None) -> Attention:
    query, key, value, dropout, causal, scale = call["query", "key", "value", "dropout_p", "is_causal", "scale"]
    return Attention(query, key, value, mask, dropout, causal, scale)


def _attend(call: Call, mask: torch.Tensor | None, state_at: int, count: int) -> list:
    """Returns `count` results: output, log-sum-exp, the seed at position `state_at`, and None for the rest."""
    of = _given(call, mask)
    seed = _drawn(of.dropout)
    output, logarithms = forward(of, seed)
    results: list = [output, _padded(logarithms, call.result(1)), *[None] * (count - 2)]
    results[state_at] = _with_seed(call.result(state_at), seed)
    return results


def _gradients(call: Call, mask: torch.Tensor | None, gradient: str, with_mask: bool = False):
    """Returns the gradients of query, keys, values and mask. `gradient` is the name of the output gradient's
    argument.
    """
    grad, output, logarithms = call[gradient, "out", "logsumexp"]
    return backward(_given(call, mask), grad, output, logarithms, _seed_of(call["philox_seed"]), with_mask)


@cpu_impl("_scaled_dot_product_efficient_attention.default")
def efficient(call: Call):
    return [*_attend(call, call["attn_bias"], 2, 3), call.result(3)]


@cpu_impl("_scaled_dot_product_efficient_attention_backward.default")
def efficient_backward(call: Call):
    wanted = call["grad_input_mask"]
    found = _gradients(call, call["attn_bias"], "grad_out_", bool(wanted[3]))
    return [one if want else None for one, want in zip(found, wanted, strict=True)]


@cpu_impl("_scaled_dot_product_flash_attention.default")
def flash(call: Call):
    return _attend(call, None, 6, 9)


@cpu_impl("_scaled_dot_product_flash_attention_backward.default")
def flash_backward(call: Call):
    return _gradients(call, None, "grad_out")[:3]


@cpu_impl("_scaled_dot_product_cudnn_attention.default")
def cudnn(call: Call):
    return _attend(call, call["attn_bias"], 6, 9)


@cpu_impl("_scaled_dot_product_cudnn_attention_backward.default")
def cudnn_backward(call: Call):
    return _gradients(call, call["attn_bias"], "grad_out")[:3]
