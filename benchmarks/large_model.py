"""Host memory while a 7-billion-parameter model is built and trained for a step on the simulated GPU."""

import resource
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import labkit

GIB = 2**30
SEVEN_BILLION = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}


def resident() -> int:
    """Most bytes of host memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    with labkit.simulated_gpu("H200"):
        before, start = resident(), time.perf_counter()
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            model = LlamaForCausalLM(LlamaConfig(**SEVEN_BILLION))
            tokens = torch.zeros(1, 2048, dtype=torch.long)
        torch.set_default_dtype(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        parameters = sum(p.numel() for p in model.parameters())
        peak = torch.cuda.max_memory_allocated()
        print(f"{parameters / 1e9:.2f} billion parameters, simulated peak {peak / GIB:.2f} GiB allocated")
        print(f"host memory: {resident() / GIB:.2f} GiB at most, {(resident() - before) / GIB:.2f} of it for this")
        print(f"ratio host memory / simulated memory: {(resident() - before) / peak:.4f}")
        print(f"{time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
