"""Preference training by DPO: a model and a frozen reference give log-probabilities of pairs of sequences.

The program is that of TRL's DPOTrainer 1.16 (trl/trainer/dpo_trainer.py, trl/kernels/chunked_logprob.py). The
chosen and the rejected sequences of a batch are one batch of twice the size, which the reference runs too, without
gradients. With LoRA, the reference is the model without its adapters, so there is no second copy. Logits exist only as
a tile of 4,096 tokens and 32,768 entries of the vocabulary. The backward pass computes each tile again, and sums the
gradients of the hidden states and of the head's weight in float32.
"""

import contextlib
from types import MethodType
from typing import Any

import torch
from torch import nn

from simgpu.fitting import lora
from simgpu.fitting.chunked_loss import HALF, check_head

TOKENS, ENTRIES = 4096, 32_768
"""Tokens and entries of the vocabulary of a tile, as in TRL."""

BETA = 0.1
"""TRL's default for the weight of the log-probabilities in the loss."""

NOTE = (
    "DPO: a batch of N pairs is 2 N sequences, all of whose tokens count as the answer's, without padding. What a "
    "trainer computes for its log, a few bytes per token, is not included"
)


def apply(model: nn.Module, subject) -> nn.Module:
    """Makes a language model return the log-probability of each following token, and returns the model.

    Raises ValueError for a model without a suitable head, and for a loss that the caller gave.
    """
    check_head(model, subject, "DPO")
    model.forward = MethodType(_log_probabilities, model)
    return model


def loss_of(model: nn.Module, reference: nn.Module | None, inputs: dict[str, torch.Tensor], around) -> torch.Tensor:
    """Returns the loss of a batch whose first half is chosen and whose second half is rejected.

    `reference`: None for the model without its adapters. `around`: a function that returns a context for each forward
    pass, such as autocast.
    """
    with around():
        own = _by_sequence(model(**inputs), inputs)
    with torch.no_grad(), lora.without_adapters(model) if reference is None else contextlib.nullcontext(), around():
        other = _by_sequence((model if reference is None else reference)(**inputs), inputs)
    chosen, rejected = (own - other).chunk(2)
    return -nn.functional.logsigmoid(BETA * (chosen - rejected)).mean()


def _by_sequence(found: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return found.view(len(inputs["input_ids"]), -1).sum(dim=1)


def _log_probabilities(self, input_ids: torch.Tensor, **inputs) -> torch.Tensor:
    """Returns the log-probabilities of all sequences in one dimension, because FSDP2 warns of a view."""
    outputs = self.base_model(input_ids=input_ids, attention_mask=inputs.get("attention_mask"), use_cache=False)
    hidden = outputs.last_hidden_state[:, :-1]
    rows, weight = hidden.reshape(-1, hidden.shape[-1]), self.get_output_embeddings().weight
    return LogProbabilities.apply(rows, weight, input_ids[:, 1:].reshape(-1))


class LogProbabilities(torch.autograd.Function):
    """Returns the log-probabilities of `labels` by the logits `hidden` @ `weight`.T, in float32."""

    @staticmethod
    def forward(ctx: Any, hidden, weight, labels):
        kind = hidden.device.type
        ctx.dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        sums = hidden.new_full((len(hidden),), float("-inf"), dtype=torch.float32)
        right = torch.zeros_like(sums)
        for rows, entries, tile in _tiles(hidden, weight, ctx.dtype):
            inside, places = _places(labels[rows], entries)
            right[rows] += tile.gather(1, places).squeeze(1) * inside
            largest = tile.amax(dim=1, keepdim=True)
            exponentials = tile.sub_(largest).exp_().sum(dim=1, dtype=torch.float32)
            sums[rows] = torch.logaddexp(sums[rows], exponentials.log() + largest.squeeze(1))
        ctx.save_for_backward(hidden, weight, labels, sums)
        return right - sums

    @staticmethod
    def backward(ctx: Any, *gradients):
        hidden, weight, labels, sums = ctx.saved_tensors
        (gradient,) = gradients
        of_hidden, of_weight = (
            torch.zeros_like(one, dtype=torch.float32) if needed else None
            for one, needed in zip((hidden, weight), ctx.needs_input_grad, strict=False)
        )
        for rows, entries, tile in _tiles(hidden, weight, ctx.dtype):
            inside, places = _places(labels[rows], entries)
            own = gradient[rows]
            tile.sub_(sums[rows].unsqueeze(1)).exp_().mul_(-own.unsqueeze(1))
            tile.scatter_add_(1, places, (own * inside).to(tile.dtype).unsqueeze(1))
            if of_hidden is not None:
                _add_product(of_hidden[rows], tile, weight[entries].to(tile.dtype))
            if of_weight is not None:
                _add_product(of_weight[entries], tile.t(), hidden[rows].to(tile.dtype))
        return (
            None if of_hidden is None else of_hidden.to(hidden.dtype),
            None if of_weight is None else of_weight.to(weight.dtype),
            None,
        )


def _tiles(hidden: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype):
    """Yields the tokens, the entries of the vocabulary, and the logits of each tile, which share one buffer."""
    buffer = hidden.new_empty(min(len(hidden), TOKENS), ENTRIES, dtype=dtype)
    for first in range(0, len(hidden), TOKENS):
        rows = slice(first, min(first + TOKENS, len(hidden)))
        left = hidden[rows].to(dtype)
        for start in range(0, len(weight), ENTRIES):
            entries = slice(start, min(start + ENTRIES, len(weight)))
            tile = buffer[: len(left), : entries.stop - start]
            yield rows, entries, torch.mm(left, weight[entries].to(dtype).t(), out=tile)


def _places(labels: torch.Tensor, entries: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns which labels are among the entries of a tile, and their places in it, in one column."""
    places = labels - entries.start
    count = entries.stop - entries.start
    return (places >= 0) & (places < count), places.clamp(0, count - 1).unsqueeze(1)


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Adds left @ right to a float32 total in place."""
    if left.is_cuda and left.dtype in HALF:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left.float(), right.float())
