"""Training at growing batch sizes in a tenth of the device, until the first that does not fit is found and fails."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

FRACTION = 0.1  # of the device's memory


def first_that_fails(stage, make):
    """Doubles the batch until a step of AdamW fails, finds the smallest that does by halves, and fails with it.

    `make()` gives a model and a function of (model, batch size) that returns the loss.
    """
    torch.cuda.set_per_process_memory_fraction(FRACTION)
    model, loss_of = make()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch):
        loss_of(model, batch).backward()
        optimizer.step()

    def fits(batch):
        try:
            step(batch)
            fitted = True
        except torch.cuda.OutOfMemoryError:
            fitted = False
        optimizer.zero_grad()
        torch.cuda.empty_cache()
        stage(f"batch {batch} {'fits' if fitted else 'fails'}")
        return fitted

    largest, failing = 0, 1
    while fits(failing):
        largest, failing = failing, 2 * failing
    while failing - largest > 1:
        middle = (largest + failing) // 2
        if fits(middle):
            largest = middle
        else:
            failing = middle
    stage(f"the first that fails is {failing}")
    step(failing)


def bert_base():
    """BERT-base with eager attention, sentences of 128 tokens, a classifier's loss."""
    from transformers import BertConfig, BertForSequenceClassification

    def loss(model, batch):
        tokens = torch.zeros(batch, 128, dtype=torch.long, device="cuda")
        labels = torch.zeros(batch, dtype=torch.long, device="cuda")
        return model(input_ids=tokens, labels=labels).loss

    with torch.device("cuda"):
        return BertForSequenceClassification(BertConfig(attn_implementation="eager")), loss


def gpt2():
    """GPT-2's shape with 4 layers, sequences of 256 tokens, the loss over its whole vocabulary."""
    from transformers import GPT2Config, GPT2LMHeadModel

    def loss(model, batch):
        tokens = torch.zeros(batch, 256, dtype=torch.long, device="cuda")
        return model(input_ids=tokens, labels=tokens).loss

    with torch.device("cuda"):
        return GPT2LMHeadModel(GPT2Config(attn_implementation="eager", n_layer=4)), loss


def mlp():
    """Four wide linear layers, on vectors."""

    def loss(model, batch):
        x = torch.zeros(64 * batch, 4096, device="cuda")
        return F.mse_loss(model(x), x)

    layers = [layer for _ in range(4) for layer in (nn.Linear(4096, 4096, device="cuda"), nn.GELU())]
    return nn.Sequential(*layers), loss


WORKLOADS = {f"limit_{make.__name__}": partial(first_that_fails, make=make) for make in (bert_base, gpt2, mlp)}
