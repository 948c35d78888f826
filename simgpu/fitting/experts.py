"""Expert parallelism: each rank holds a part of the experts, and tokens go to the ranks of their experts and back.

The dispatch follows torchtitan's (torchtitan/distributed/expert_parallel.py): each token is copied once for each of its
experts, an all-to-all brings the copies to the ranks of these experts, and a second one brings the results back. Which
expert a token needs depends on values, which fit does not compute. So the routing is even, or the fullest rank receives
a given multiple of the even share. The experts themselves compute as in transformers.
"""

import math
from types import MethodType
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

NOTE = (
    "Experts: all-to-all of one copy of a token per expert, with the same number of tokens for each rank and for each "
    "expert of a rank unless imbalance= says otherwise. Capacity limits, padding of groups and overlap are not modelled"
)


def experts_of(model: nn.Module) -> list[nn.Module]:
    """Returns the modules that hold the weights of all experts of a layer, as transformers' models have them."""
    return [one for one in model.modules() if hasattr(one, "_is_expert_parallel") and hasattr(one, "num_experts")]


def divide(model: nn.Module, group: dist.ProcessGroup, imbalance: float) -> list[nn.Module]:
    """Keeps this rank's part of the experts of each layer, and makes their tokens go through all-to-alls of the group.

    `model` is on the meta device. Returns the modules of the experts. Raises ValueError for a model without experts, or
    with a number of them that the ranks of the group cannot share equally.
    """
    parts = group.size()
    found: list[Any] = experts_of(model)
    if not found:
        raise ValueError("expert parallelism needs a model with experts, and this one has none that fit knows")
    for module in found:
        number = module.num_experts
        if number % parts:
            raise ValueError(f"{parts} ranks cannot share {number} experts equally")
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.shape[0] == number:
                kept = parameter.new_empty(number // parts, *parameter.shape[1:])
                setattr(module, name, nn.Parameter(kept, requires_grad=parameter.requires_grad))
        module.num_experts = number // parts
        module.forward = MethodType(_dispatched(type(module).forward, group, imbalance), module)
    return found


def received(rows: int, parts: int, imbalance: float) -> list[int]:
    """Returns how many rows a rank receives from each rank if each has `rows` of them, with the given imbalance.

    The sum is at least `rows` × `imbalance`, and at most everything that all ranks have.
    """
    total = min(math.ceil(rows * imbalance), rows * parts)
    return [total // parts + (number < total % parts) for number in range(parts)]


def _dispatched(compute, group: dist.ProcessGroup, imbalance: float):
    """Returns a forward pass of experts that computes the rows of all ranks that are for this rank's experts."""

    def forward(self, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        chosen = index.shape[-1]
        rows = index.numel()
        _, order = torch.sort(index.reshape(-1))
        sent, expected = received(rows, group.size(), 1), received(rows, group.size(), imbalance)
        arrived = _exchange(hidden[order // chosen], expected, sent, group)
        places = torch.zeros(len(arrived), 1, dtype=torch.long, device=hidden.device)
        computed = compute(self, arrived, places, torch.ones_like(places, dtype=weights.dtype))
        returned = _exchange(computed, sent, expected, group)
        back = torch.empty_like(order)
        back[order] = torch.arange(rows, device=order.device)
        weighted = returned[back].view(-1, chosen, hidden.shape[-1]) * weights.reshape(-1, chosen, 1)
        return weighted.sum(dim=1).to(hidden.dtype)

    return forward


def _exchange(rows: torch.Tensor, expected: list[int], sent: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    """Returns the rows that this rank receives from each rank in an all-to-all."""
    from torch.distributed import _functional_collectives as collectives

    return collectives.all_to_all_single_autograd(rows, expected, sent, group)


def joined(ranks: int, parts: int):
    """Returns the mesh of the ranks that hold the same experts, and the group of those that share all experts."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (ranks // parts, parts), mesh_dim_names=("copies", "experts"))
    return mesh["copies"], mesh["experts"].get_group()
