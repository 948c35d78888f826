"""BERT and GPT-2, training and inference, in float32 and under autocast."""

from functools import partial
from itertools import product

import torch

from simgpu.recording.workloads.models import bert

MODES = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}  # None: no autocast
ATTENTION = ("eager", "sdpa")
BATCHES = {"base": 32, "large": 4}  # as in the course's chapter on BERT, and in the Trainer's example


def autocast(mode):
    return torch.autocast("cuda", dtype=MODES[mode], enabled=MODES[mode] is not None)


def bert_training(stage, size, attention, mode, batch=None, length=512):
    """Runs two steps of AdamW on the sum of the outputs, in eval mode as `from_pretrained` returns the model."""
    with torch.device("cuda"):
        model = bert(size, attention)
        stage("model")
        tokens = torch.randint(1000, (batch or BATCHES[size], length))
    stage("input")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(stage=lambda name: None):
        with autocast(mode):
            outputs = model(tokens)
            stage("forward")
            loss = outputs.last_hidden_state.sum()
        stage("loss")
        loss.backward()
        stage("backward")
        optimizer.step()
        optimizer.zero_grad()
        stage("step")

    step(stage)
    stage("first step")
    step(stage)
    stage("second step")
    return step


def bert_inference(stage, size, attention, mode, batch=None, length=512):
    """Runs two forward passes without gradients."""
    with torch.device("cuda"):
        model = bert(size, attention)
        stage("model")
        tokens = torch.randint(1000, (batch or BATCHES[size], length))
    stage("input")

    def step(stage=lambda name: None):
        with torch.no_grad(), autocast(mode):
            outputs = model(tokens)
        stage("forward")
        del outputs

    step(stage)
    stage("first")
    step(stage)
    stage("second")
    return step


def gpt2_training(stage, attention="sdpa", mode="fp32", batch=4, length=512, micro_batches=1, checkpointing=False):
    """Runs GPT-2 small in train mode: two steps of AdamW on its own loss, averaged over `micro_batches`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("cuda"):
        model = GPT2LMHeadModel(GPT2Config(attn_implementation=attention)).train()  # pyright: ignore[reportCallIssue]
        stage("model")
        batches = torch.randint(1000, (micro_batches, batch, length)).unbind()
    stage("input")
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters())

    def step(stage=lambda name: None):
        for tokens in batches:
            with autocast(mode):
                loss = model(input_ids=tokens, labels=tokens).loss
            stage("forward")
            (loss / micro_batches).backward()
            stage("backward")
            del loss
        optimizer.step()
        optimizer.zero_grad()
        stage("step")

    step(stage)
    stage("first step")
    step(stage)
    stage("second step")
    return step


WORKLOADS = {
    f"bert-{size}-{attention}-{mode}-{kind}": partial(run, size=size, attention=attention, mode=mode)
    for size, attention, mode, (kind, run) in product(
        BATCHES, ATTENTION, MODES, (("training", bert_training), ("inference", bert_inference))
    )
}
WORKLOADS |= {
    f"gpt2-small-{attention}-{mode}": partial(gpt2_training, attention=attention, mode=mode)
    for attention, mode in product(ATTENTION, MODES)
}
