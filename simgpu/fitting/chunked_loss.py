"""A loss that computes the logits of a few tokens at a time, as Liger's fused linear cross-entropy does.

The linear layer of the head and the cross-entropy are one step (Liger 0.8.5, ops/fused_linear_cross_entropy.py). For
each chunk of tokens, the forward pass computes logits, turns them into their gradient in place, and adds the gradients
of the hidden states and of the head's weight. Autograd saves only these two, so the logits of a whole batch never
exist. Transformers' Trainer does this with use_liger_kernel=True.
"""

import importlib
from types import MethodType
from typing import Any

import torch
from torch import nn

AUTO = "auto"
"""As many chunks as Liger makes."""
IGNORED = -100
"""The label of a token that does not count, as in PyTorch's cross-entropy."""
HALF = torch.float16, torch.bfloat16
NOTE = (
    "The loss is computed in chunks of tokens like Liger's fused linear cross-entropy; its kernels for norms, rotary "
    "embeddings and MLPs are not included"
)


def apply(model: nn.Module, subject, chunks: int | str) -> nn.Module:
    """Makes a causal language model of transformers compute its loss in chunks, and returns it.

    `chunks`: their number, or AUTO for that of Liger. Raises ValueError for other models, for a head that is not a
    linear layer without bias, and for a loss that the caller gave.
    """
    check_head(model, subject, "a chunked loss")
    model.forward = MethodType(_with_loss(chunks), model)
    return model


def check_head(model: nn.Module, subject, what: str) -> None:
    """Raises ValueError for a subject that is not a language model with its own loss, and for a head with a bias."""
    if subject.cache is None or subject.own_loss:
        raise ValueError(f"{what} is for language models of transformers with their own loss, not {subject.name}")
    head: Any = model.get_output_embeddings()  # pyright: ignore[reportCallIssue]
    if not isinstance(head, nn.Linear) or head.bias is not None:
        raise ValueError(f"{what} needs a head that is a linear layer without bias, and {subject.name} has none")


def _with_loss(chunks: int | str):
    """Returns a forward pass that returns the loss and no logits."""

    def forward(self, labels: torch.Tensor | None = None, **inputs):
        if labels is None:
            raise ValueError(f"a chunked loss needs labels in the batch, which has only: {', '.join(inputs)}")
        outputs = self.base_model(**inputs)
        hidden, head = outputs.last_hidden_state, self.get_output_embeddings()
        labels = nn.functional.pad(labels, (0, 1), value=IGNORED)
        following = labels[..., 1:].contiguous()
        loss = LinearCrossEntropy.apply(hidden.view(-1, hidden.shape[-1]), head.weight, following.view(-1), chunks)
        kind = importlib.import_module("transformers.modeling_outputs").CausalLMOutputWithPast
        return kind(loss=loss, past_key_values=outputs.past_key_values)

    return forward


def chunk_size(tokens: int, width: int, vocabulary: int, chunks: int | str) -> int:
    """Returns how many tokens a chunk has: of a number of `chunks`, or as many as Liger chooses (AUTO).

    Liger's chunks have about as many logits as the batch has hidden states, and a power of two as their size.
    """
    if isinstance(chunks, int):
        return -(-tokens // chunks)
    size = -(-tokens // -(-vocabulary // width))
    return min(tokens, 1 << (size - 1).bit_length())


class LinearCrossEntropy(torch.autograd.Function):
    """Returns the mean cross-entropy of `hidden` @ `weight`.T and `labels`; the forward pass computes its gradients."""

    @staticmethod
    def forward(ctx, hidden, weight, labels, chunks):
        tokens = len(hidden)
        size = chunk_size(tokens, hidden.shape[1], len(weight), chunks)
        of_hidden = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        losses = torch.zeros(tokens, dtype=torch.float32, device=hidden.device)
        present = labels != IGNORED
        alike = hidden.dtype == weight.dtype and not torch.is_autocast_enabled(hidden.device.type)
        buffer = hidden.new_empty(size, len(weight)) if alike else None
        for start in range(0, tokens, size):
            part = slice(start, min(start + size, tokens))
            rows = hidden[part]
            logits = rows @ weight.t() if buffer is None else torch.mm(rows, weight.t(), out=buffer[: len(rows)])
            losses[part] = _differentiate(logits, labels[part], present[part] / present.sum())
            if buffer is None:
                of_hidden[part] = logits @ weight
            else:
                torch.mm(logits, weight, out=of_hidden[part])
            if of_weight is not None:
                _add_product(of_weight, logits.t(), rows)
            del logits
        del buffer
        ctx.save_for_backward(of_hidden, of_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx, *gradients):
        of_hidden, of_weight = ctx.saved_tensors
        (gradient,) = gradients
        of_hidden.mul_(gradient)
        return of_hidden, None if of_weight is None else of_weight.mul_(gradient), None, None


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Adds left @ right to a total: in place in 16 bits since Ampere, and otherwise by a tensor for the product."""
    in_place = left.is_cuda and left.dtype in HALF and torch.cuda.get_device_capability(left.device)[0] >= 8
    if in_place and total.dtype == left.dtype:
        torch.addmm(total, left, right.to(left.dtype), out=total)
    elif in_place and total.dtype == torch.float32:
        torch.addmm(total, left, right.to(left.dtype), out_dtype=torch.float32, out=total)
    else:
        total += torch.mm(left, right).float()


def _differentiate(logits: torch.Tensor, labels: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Returns the loss of each token times its `share`, and replaces the logits by the gradient, as one kernel does."""
    places = labels.clamp(min=0).unsqueeze(1)
    largest = logits.amax(dim=1, keepdim=True)
    right = logits.gather(1, places) - largest
    logits.sub_(largest).exp_()
    sums = logits.sum(dim=1, keepdim=True, dtype=torch.float32)
    logits.div_(sums).scatter_add_(1, places, torch.full_like(right, -1)).mul_(share.unsqueeze(1))
    return (sums.log() - right).squeeze(1) * share
