"""Trains four Linears ("chain"), eager and compiled, or the running model, eager, with torchao's Float8Linear."""

import json
import sys
from itertools import product

import torch
from torch import nn

from helpers import running

(MODEL,) = sys.argv[1:]
RECIPES = ("bf16", "tensorwise", "rowwise") if MODEL == "chain" else ("bf16", "tensorwise")
WAYS = (False,) if MODEL == "running" else (False, True)  # whether it is compiled
WIDTH, LAYERS, TOKENS = 4096, 4, 8192  # of the chain, which chapter 11c builds too
torch.backends.cuda.enable_cudnn_sdp(False)  # as in chapter 11c, because the stub of cuDNN has no workspaces


def converted(model, recipe, compiled):
    """The model with the Linears in float8 except the last one of a language model, and compiled if so wanted."""
    if recipe != "bf16":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name(recipe)
        convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: "lm_head" not in name)
    return torch.compile(model) if compiled else model


def of_chain(*how):
    """What forward adds, and the peaks above what is allocated all the time, for the chain of Linears."""
    with torch.device("cuda"):
        linears = (nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS))
        x, gradient = torch.zeros(2, TOKENS, WIDTH, dtype=torch.bfloat16)
        model = converted(nn.Sequential(nn.Identity(), *linears), *how)
    return peaks(model, x, gradient)


def peaks(model, x, gradient):
    """What the third forward adds, its peak, and the peak of forward and backward, in bytes above the start."""
    for _ in range(3):  # the first allocate workspaces, and compile
        model.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = model(x)
        adds, forward = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
        y.backward(gradient)
        peak, y = torch.cuda.max_memory_allocated() - before, None
    return {"forward adds": adds, "forward peak": forward, "peak": peak}


def of_running_model(*how):
    """The peaks of the running model's step before the optimizer's and from there on, in bytes."""

    def build():
        model = converted(running.model(), *how)
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    def step(model, optimizer, batch):
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    backward, update = running.train(build, step, first=4)  # a new shape would be compiled anew
    return {"backward": backward, "step": update}


measure = of_chain if MODEL == "chain" else of_running_model
for compiled, recipe in product(WAYS, RECIPES):
    torch._dynamo.reset()
    found = {"recipe": recipe, "compiled": compiled, **measure(recipe, compiled)}
    print("result:", json.dumps(found), flush=True)
