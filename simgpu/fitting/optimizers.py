"""The optimizers that a plan can name, created for the parameters of a model."""

import sys

import torch
from torch import nn

from simgpu.fitting import parallel

OPTIMIZERS = ("adamw", "adamw-fused", "adamw-8bit", "adam", "sgd", "sgd-momentum", "adafactor", "muon")

RATE = 1e-3
BLOCK = 256
"""Elements per scale (bitsandbytes 0.50, optim/optimizer.py, `init_state`)."""

SMALLEST = 4096
"""Smallest number of elements for which a parameter has 8-bit states (bitsandbytes' default for `min_8bit_size`)."""


class AdamW8bit(torch.optim.SGD):
    """Allocates the states of bitsandbytes' AdamW8bit, and updates the parameters as SGD does.

    bitsandbytes' kernel updates in place and allocates nothing. So the memory is that of its AdamW8bit, but the time of
    a step is that of SGD. `full`: parameters whose states stay in 32 bits, like those smaller than SMALLEST.
    """

    def __init__(self, parameters, full=()):
        super().__init__(parameters, lr=RATE)
        self._full = {id(one) for one in full}
        self._maps: tuple = ()  # two tables of 256 values, shared by all parameters

    @torch.no_grad()
    def step(self, closure=None):
        """Updates the parameters; the first call allocates their states."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = self._states(parameter)
        return super().step(closure)

    def _states(self, parameter) -> dict[str, torch.Tensor]:
        own = parallel.local(parameter)
        if id(parameter) in self._full or own.numel() < SMALLEST:
            return {f"state{n}": torch.zeros_like(own, dtype=torch.float32) for n in (1, 2)}
        if not self._maps:
            self._maps = tuple(torch.zeros(256, device=own.device) for _ in range(2))
        found = {}
        for n, table in enumerate(self._maps, 1):
            found[f"state{n}"], found[f"qmap{n}"] = torch.zeros_like(own, dtype=torch.uint8), table
        for n in (1, 2):
            found[f"absmax{n}"] = torch.zeros(-(-own.numel() // BLOCK), device=own.device)
        return found


class Together:
    """Combines several optimizers that step one after the other."""

    def __init__(self, *optimizers: torch.optim.Optimizer):
        self.optimizers = optimizers

    def step(self) -> None:
        """Steps each optimizer."""
        for one in self.optimizers:
            one.step()

    def zero_grad(self) -> None:
        """Clears all gradients."""
        for one in self.optimizers:
            one.zero_grad()


def made(name: str, model: nn.Module):
    """Returns the optimizer called `name`, of OPTIMIZERS, for the trained parameters of a model."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    make = torch.optim
    if name == "adamw-8bit":
        return AdamW8bit(parameters, _embeddings(model) if _of_transformers(model) else ())
    if name == "muon":
        return _muon(model, parameters)
    kinds = {
        "adamw": (make.AdamW, {}),
        "adamw-fused": (make.AdamW, {"fused": True}),
        "adam": (make.Adam, {}),
        "adafactor": (make.Adafactor, {}),
        "sgd": (make.SGD, {}),
        "sgd-momentum": (make.SGD, {"momentum": 0.9}),
    }
    kind, options = kinds[name]
    return kind(parameters, lr=RATE, **options)


def _of_transformers(model: nn.Module) -> bool:
    """Returns whether a model is from transformers, whose Trainer keeps 32-bit states for embeddings.

    (trainer.py, `create_optimizer`: an override by GlobalOptimManager for each nn.Embedding)
    """
    transformers = sys.modules.get("transformers")
    return transformers is not None and any(isinstance(one, transformers.PreTrainedModel) for one in model.modules())


def _embeddings(model: nn.Module) -> list[torch.Tensor]:
    return [one.weight for one in model.modules() if isinstance(one, nn.Embedding)]


def _muon(model: nn.Module, parameters: list):
    """Returns Muon for the weights of hidden layers and AdamW for the rest, as torch.optim.Muon's documentation
    recommends.

    Muon accepts only matrices, and is not meant for embeddings, biases or the head.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    others = {id(one) for one in _embeddings(model)} | {id(one) for one in (head.parameters() if head else ())}
    hidden = [one for one in parameters if one.ndim == 2 and id(one) not in others]
    rest = [one for one in parameters if one.ndim != 2 or id(one) in others]
    found = [torch.optim.Muon(hidden, lr=RATE)] if hidden else []
    found += [torch.optim.AdamW(rest, lr=RATE)] if rest else []
    return Together(*found)
