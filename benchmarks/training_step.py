"""How long a simulated step takes: against MemTracker on the same step, and at batch 256 against batch 1.

    python -m benchmarks.training_step [bert | gpt2 | llama | vit | resnet | generation | all]

MemTracker (torch.distributed._tools.mem_tracker) is PyTorch's own estimator; it traces the step on meta tensors. Each
figure is processor time, the best of several rounds. A step trains; that of
`generation` is Llama's forward pass for one token.
"""

import sys
import time

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    ResNetConfig,
    ResNetModel,
    ViTConfig,
    ViTModel,
)

import labkit

ROUNDS = 7
LLAMA = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}


def trained(model_class, config):
    """What makes such a model and its optimizer on a device."""

    def make(device):
        with torch.device(device):
            model = model_class(config).train()
        return model, torch.optim.AdamW(model.parameters(), foreach=True)

    return make


bert = trained(BertModel, BertConfig(attn_implementation="eager"))
# name: what makes the model, the batch, tokens of each sequence (None: images)
WORKLOADS = {
    "bert": (bert, 32, 512),
    "gpt2": (trained(GPT2Model, GPT2Config()), 8, 512),
    "llama": (trained(LlamaModel, LlamaConfig(**LLAMA)), 4, 512),
    "vit": (trained(ViTModel, ViTConfig()), 32, None),
    "resnet": (trained(ResNetModel, ResNetConfig()), 32, None),
    "generation": (trained(LlamaModel, LlamaConfig(**LLAMA)), 1, 1),
}


def step(model, optimizer, batch, length):
    device = next(model.parameters()).device
    if length is None:
        given = torch.zeros(batch, 3, 224, 224, device=device)
    else:
        given = torch.zeros(batch, length, dtype=torch.long, device=device)
    model(given).last_hidden_state.sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def generate(model, optimizer, batch, length):
    """One token, as in generation: many small operators. MemTracker refuses the second call that a cache would take."""
    model(torch.zeros(batch, length, dtype=torch.long, device=next(model.parameters()).device))


def seconds(work, *arguments) -> float:
    start = time.process_time()
    work(*arguments)
    return time.process_time() - start


def simulated(make, *batches: int, length: int | None, work=step):
    """The best time of a step at each batch size on a simulated A100, the sizes taken in turn."""
    with labkit.simulated_gpu("A100-80GB"):
        model, optimizer = make("cuda")
        work(model, optimizer, batches[0], length)
        rounds = [[seconds(work, model, optimizer, batch, length) for batch in batches] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def tracked(make, batch: int, length: int | None, work=step):
    """The best time of a step under MemTracker on the meta device."""
    model, optimizer = make("meta")
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    times = []
    with tracker:
        for _ in range(ROUNDS):
            times.append(seconds(work, model, optimizer, batch, length))
            tracker.reset_mod_stats()
    return min(times)


def compared(name: str) -> None:
    """Prints both times of a workload, and their ratio."""
    make, batch, length = WORKLOADS[name]
    work = generate if name == "generation" else step
    (ours,), theirs = simulated(make, batch, length=length, work=work), tracked(make, batch, length, work)
    print(f"{name}: simulated {ours:.3f} s, MemTracker {theirs:.3f} s, ratio {ours / theirs:.2f}")


def main(name: str = "bert"):
    if name != "all" and name not in WORKLOADS:
        raise SystemExit(f"known workloads are {', '.join(WORKLOADS)} and all; {name!r} was given")
    for one in WORKLOADS if name == "all" else (name,):
        compared(one)
    if name == "bert":
        print("(goal for bert: a ratio of at most 0.08)")
        small, large = simulated(bert, 1, 256, length=128)
        print(f"ratio batch 256 / batch 1 at length 128: {large / small:.2f} (goal: 1 within 10 %)")


if __name__ == "__main__":
    main(*sys.argv[1:])
