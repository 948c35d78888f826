"""Time and host memory of a training step of a large language model on the simulated GPU.

    python -m benchmarks.large_model [7B | 70B]

The 70-billion-parameter step fits on no GPU; it is simulated on an H200 with 2 TiB.
"""

import resource
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import labkit

GIB = 2**30
# The shapes that Touvron et al. 2023 publish, "Llama 2: Open Foundation and Fine-Tuned Chat Models"
SIZES = {
    "7B": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
    "70B": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
}


def resident() -> int:
    """Most bytes of host memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def step(size: str, optimizer_class) -> None:
    """One training step in bfloat16, a sequence of 2,048 tokens."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**SIZES[size]))
        tokens = torch.zeros(1, 2048, dtype=torch.long)
    torch.set_default_dtype(torch.float32)
    optimizer = optimizer_class(model.parameters(), lr=0.1)
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
    print(f"{size}: {sum(p.numel() for p in model.parameters()) / 1e9:.2f} billion parameters")


def main(size: str = "70B"):
    if size not in SIZES:
        raise SystemExit(f"known sizes are {', '.join(SIZES)}; {size!r} was given")
    before, start = resident(), time.perf_counter()
    with labkit.simulated_gpu("H200", total_memory=2 * 2**40):
        step(size, torch.optim.AdamW)
        peak = torch.cuda.max_memory_allocated()
    print(f"simulated peak {peak / GIB:.2f} GiB allocated")
    print(f"host memory: {resident() / GIB:.2f} GiB at most, {(resident() - before) / GIB:.2f} of it for this")
    print(f"ratio host memory / simulated memory: {(resident() - before) / peak:.6f}")
    print(f"{time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
