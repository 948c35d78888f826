"""Fine-tunes adapters of a Llama whose weights are in bfloat16 or in 4 bits; the argument is, say, "8B QLoRA"."""

import gc
import json
import struct
import sys
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

from helpers import running

SIZE, WAY = sys.argv[1].split()
BATCH = {"8B": (2, 2048), "65B": (1, 512)}[SIZE]
LLAMA_65B = {"vocab_size": 32_000, "hidden_size": 8192, "intermediate_size": 22_016, "num_hidden_layers": 80}
LLAMA_65B |= {"num_attention_heads": 64, "tie_word_embeddings": False}  # the largest of LLaMA's, which QLoRA trained
CONFIG = LlamaConfig(**{"8B": running.EIGHT_BILLION, "65B": LLAMA_65B}[SIZE] | {"use_cache": False})
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
CHUNKS = 8
LARGEST_FILE = 4 * 2**30  # bytes, so that each file can be mapped into memory


def write_checkpoint(folder):
    """Writes a checkpoint in bfloat16 whose weights are holes in its files, so that they need no space on the disk."""
    with torch.device("meta"):
        state = AutoModelForCausalLM.from_config(CONFIG, dtype=torch.bfloat16).state_dict()
    files, size = [{}], 0
    for name, tensor in state.items():
        size += tensor.nbytes
        if size > LARGEST_FILE and files[-1]:
            files.append({})
            size = tensor.nbytes
        files[-1][name] = tensor
    index = {}
    for number, tensors in enumerate(files):
        write_holes(Path(folder, f"model-{number}.safetensors"), tensors)
        index |= dict.fromkeys(tensors, f"model-{number}.safetensors")
    text = json.dumps({"metadata": {}, "weight_map": index})
    Path(folder, "model.safetensors.index.json").write_text(text, encoding="utf-8")
    CONFIG.architectures = ["LlamaForCausalLM"]
    CONFIG.save_pretrained(folder)


def write_holes(path, tensors):
    """Writes a safetensors file with the shapes of these tensors and no data."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


def loaded():
    """The model as `from_pretrained` returns it, in 4 bits unless the way is LoRA, in training mode."""
    in_4_bits = BitsAndBytesConfig(**NF4, bnb_4bit_compute_dtype=torch.bfloat16)
    quantised = None if WAY == "LoRA" else in_4_bits
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=quantised, dtype=torch.bfloat16, device_map={"": 0}
        )
    gc.collect()
    return model.train()


def linears():
    """The elements of all weights that are quantised, those of the Linears in layers."""
    with torch.device("meta"):
        layers = AutoModelForCausalLM.from_config(CONFIG).model.layers
    return sum(module.weight.numel() for module in layers.modules() if isinstance(module, nn.Linear))


def with_adapters(model):
    """The model with checkpoints, and with adapters of rank 8 on every Linear of its layers, in float32."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    adapters = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, adapters)


def loss_of(model, batch, chunked):
    """The loss; chunked, the logits of an eighth of the tokens exist at a time, and backward computes them again."""
    if not chunked:
        return model(input_ids=batch, labels=batch).loss
    llama = model.base_model.model
    hidden = llama.model(input_ids=batch).last_hidden_state[:, :-1].flatten(0, 1)

    def of_chunk(chunk, labels):
        return F.cross_entropy(llama.lm_head(chunk).float(), labels, reduction="sum")

    pairs = zip(hidden.chunk(CHUNKS), batch[:, 1:].flatten().chunk(CHUNKS), strict=True)
    return sum(checkpoint(of_chunk, *pair, use_reentrant=False) for pair in pairs) / len(hidden)


def peaks(model, optimizer, chunked):
    """The peaks of the second step before the optimizer's and from there on, in bytes."""
    batch = torch.randint(CONFIG.vocab_size, BATCH, device="cuda")
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        loss_of(model, batch, chunked).backward()
        backward = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        optimizer.zero_grad()
    return {"backward": backward, "step": torch.cuda.max_memory_allocated()}


def main():
    """Prints what is allocated after loading, with adapters and between steps, and the peaks, in bytes."""
    model = loaded()
    found = {"loaded": torch.cuda.memory_allocated(), "linears": linears()}
    model = with_adapters(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    found |= {"adapters": sum(p.numel() for p in trained), "with adapters": torch.cuda.memory_allocated()}
    optimizer = torch.optim.AdamW(trained, fused=True)
    found |= peaks(model, optimizer, chunked=True)
    found |= {f"{name}, whole loss": size for name, size in peaks(model, optimizer, chunked=False).items()}
    found["between steps"] = torch.cuda.memory_allocated()
    if WAY == "QLoRA":  # what is not in 4 bits, in float32
        prepare_model_for_kbit_training(model.base_model.model, use_gradient_checkpointing=False)
        found["prepared"] = torch.cuda.memory_allocated()
    print("result:", json.dumps(found | {"batch": BATCH}))


main()
