"""The running model of the course, which chapter 00 builds: a Llama with 1.7 billion parameters in bfloat16.

Each chapter of Part III trains it with one technique and adds a bar to its budget chart. `python -m tools.budget`
executes those cells and stores the bars in notebooks/data/budget.yaml.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from helpers.budget import Budget
from labkit import MiB, simulated_gpu

STORED = Path(__file__).parents[1] / "data" / "budget.yaml"
SHAPE: dict[str, Any] = {"vocab_size": 49_152, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24}
SHAPE |= {"num_attention_heads": 32, "tie_word_embeddings": True, "use_cache": False}  # that of SmolLM2-1.7B
BATCH = 4, 1024  # sequences, tokens
GPU, MEMORY = "T4", 80 * 2**30
"""The GPU of the chart. It is simulated with 80 GiB, so that a step that is too large for a T4 has a peak as well."""
EIGHT_BILLION = SHAPE | {"vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336}
EIGHT_BILLION |= {"num_hidden_layers": 32, "num_key_value_heads": 8, "tie_word_embeddings": False}  # Llama 3's 8B

Build = Callable[[], tuple[nn.Module, Any]]
Step = Callable[[nn.Module, Any, Tensor], None]


def model(dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Returns a new running model on the GPU, in training mode."""
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE), dtype=dtype).train()


def micro_batches(model: nn.Module, batch: Tensor) -> None:
    """Accumulates the gradients of a batch in micro-batches of one sequence (chapter 09)."""
    for sequence in batch.split(1):
        loss = model(sequence, labels=sequence).loss / len(batch)
        loss.backward()


def train(build: Build, step: Step, first: int = 1) -> tuple[int, int]:
    """Returns the peaks in bytes of a training step on the current GPU, before the optimizer's step and from there on.

    `build()` returns a model and its optimizer, and `step(model, optimizer, batch)` is one training step. It runs once
    on `first` sequences, because AdamW allocates its states only when it first steps, and then on the whole batch.
    Raises ValueError if the step calls no optimizer.
    """
    model, optimizer = build()
    vocabulary, (sequences, tokens) = SHAPE["vocab_size"], BATCH
    batch = torch.randint(vocabulary, (sequences, tokens), device="cuda")
    step(model, optimizer, batch[:first])
    before: list[int] = []

    def backward_has_ended(*_):
        if not before:
            before.append(torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()

    torch.cuda.reset_peak_memory_stats()
    hook = register_optimizer_step_pre_hook(backward_has_ended)
    try:
        step(model, optimizer, batch)
    finally:
        hook.remove()
    if not before:
        raise ValueError("the step called no optimizer: wanted optimizer.step() after backward()")
    return before[0], torch.cuda.max_memory_allocated()


def measure(build: Build, step: Step) -> tuple[int, int]:
    """Returns what `train` returns, on the simulated GPU of the chart."""
    with simulated_gpu(GPU, MEMORY):
        return train(build, step)


def stored() -> dict:
    """Returns the stored bars, with the memory of the GPU in bytes and the versions that measured them."""
    return yaml.safe_load(STORED.read_text(encoding="utf-8"))


def budget(chapter: str) -> Budget:
    """Returns the budget chart with the bars of the chapters before `chapter`, such as "10".

    A bar that is added to it gets the chapter's number. Raises FileNotFoundError if no bars are stored.
    """
    data = stored()
    made = Budget(data["gpu"], data["limit"], chapter)
    for row in data["bars"]:
        if row["chapter"] < chapter:
            made.rows[f"{row['chapter']} · {row['technique']}"] = row["backward"], row["step"]
    made.earlier = len(made.rows)
    return made


def compiled(gpu: str = "A100-80GB") -> pd.DataFrame:
    """Returns the stored peaks on a GPU in MiB: eager, compiled, with Liger's kernels, and with both.

    They were measured by PyTorch's own CUDA code without a GPU.
    """
    rows = {one["way"]: [one["backward"], one["step"]] for one in stored()["compiled"] if one["gpu"] == gpu}
    table = pd.DataFrame(rows, index=["forward and backward", "optimizer step"]) / MiB
    return table.round().astype(int).rename_axis(f"{gpu} (MiB)")


def tower() -> pd.DataFrame:
    """Returns the stored sizes in MiB of chapter 13's tower: what forward adds, the step's peak, and what is reserved.

    The peak is above what is allocated before the step. PyTorch's own CUDA code measured them without a GPU.
    """
    data = stored()["tower"]
    rows = {row["way"]: [row["added"], row["peak"], row["reserved"]] for row in data["rows"]}
    table = pd.DataFrame(rows, index=["forward adds", "step adds at its peak", "reserved"]) / MiB
    return table.round().astype(int).rename_axis(f"{data['gpu']} (MiB)")


def eight_billion() -> tuple[dict[str, int], str, int]:
    """Returns the stored peaks in bytes of a Llama with 8 billion parameters, their GPU, and what it offers in bytes.

    The peaks are those of the whole step, under one technique after another.
    """
    data = stored()["8B"]
    return {row["technique"]: max(row["backward"], row["step"]) for row in data["bars"]}, data["gpu"], data["limit"]
