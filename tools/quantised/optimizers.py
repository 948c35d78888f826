"""Steps a model, which the argument names, with AdamW in 32 and in 8 bits."""

import gc
import json
import sys
import tempfile

import bitsandbytes
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Trainer,
    TrainingArguments,
)

from helpers import models, running

(MODEL,) = sys.argv[1:]
OPTIMIZERS = {
    "matrix": ("torch", "bitsandbytes", "paged"),
    "running": ("torch", "bitsandbytes", "Trainer"),
    "gemma-3-270m": ("torch", "Trainer"),
    "bert-large": ("torch", "bitsandbytes"),
}
GEMMA = {"vocab_size": 262_144, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18}
GEMMA |= {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256}  # Gemma 3 270M, whose head is tied


def made():
    """A new model on the GPU, in bfloat16 except bert-large and the matrix."""
    with torch.device("cuda"):
        if MODEL == "running":
            return running.model()
        if MODEL == "gemma-3-270m":
            return Gemma3ForCausalLM(Gemma3TextConfig(**GEMMA)).bfloat16()
        if MODEL == "bert-large":
            return BertForSequenceClassification(BertConfig(**models.BERT_SIZES["large"], attn_implementation="eager"))
        return nn.Linear(4096, 4096, bias=False)


def optimizer_of(name, model):
    """AdamW of torch or of bitsandbytes, or the one that Trainer creates for adamw_8bit."""
    if name == "Trainer":
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(folder, optim="adamw_8bit", report_to=[])
            return Trainer(model, arguments).create_optimizer()
    if name == "torch":  # a for-loop for bert-large, as in the torch of 2022
        how = {"foreach": False} if MODEL == "bert-large" else {"fused": True}
        return torch.optim.AdamW(model.parameters(), **how)
    named = {"bitsandbytes": "AdamW8bit", "paged": "PagedAdamW8bit"}[name]
    return getattr(bitsandbytes.optim, named)(model.parameters())


def of_states(name):
    """Parameters, those of embeddings, the states in bytes on the GPU, and what the second step adds to its start."""
    model = made()
    optimizer = optimizer_of(name, model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    before = torch.cuda.memory_allocated()
    optimizer.step()
    after = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    embeddings = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding))
    sizes = {"parameters": sum(p.numel() for p in model.parameters()), "in embeddings": embeddings}
    return sizes | {"states": after - before, "step adds": torch.cuda.max_memory_allocated() - after}


def of_bert(name):
    """What is reserved after two steps of bert-large with 4 sequences of 512 tokens and gradients that are kept."""
    model, tokens = made(), torch.zeros(4, 512, dtype=torch.long, device="cuda")
    optimizer = optimizer_of(name, model)
    for _ in range(2):
        model(tokens, labels=tokens[:, 0]).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return {"reserved": torch.cuda.memory_reserved()}


for name in OPTIMIZERS[MODEL]:
    gc.collect()
    torch.cuda.empty_cache()
    found = (of_bert if MODEL == "bert-large" else of_states)(name)
    print("result:", json.dumps({"optimizer": name, **found}), flush=True)
