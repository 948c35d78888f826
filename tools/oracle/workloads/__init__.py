"""Plain PyTorch on "cuda", in small pieces, to be run alike on a GPU, on the simulated GPU and on the oracle.

A workload is a function `name(stage)` that calls `stage("forward")` wherever the memory counters are to be
read. Nothing here knows labkit. `WORKLOADS` has them all by name; `find("random_17")` also draws a random
network, and `find("ranks_ddp_2of4")` has any rank of any number (`ranks.WORKLOADS` has those that are compared).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from tools.oracle.workloads import (
    attention,
    batch_limit,
    counting,
    layers,
    linear,
    losses,
    optimizers,
    out_of_memory,
    random_network,
    ranks,
    trainer,
    training,
    transformer_models,
    vision,
)

MODULES = (
    linear,
    layers,
    losses,
    attention,
    optimizers,
    training,
    out_of_memory,
    batch_limit,
    counting,
    vision,
    transformer_models,
    trainer,
    random_network,
)
WORKLOADS: Mapping[str, Callable] = MappingProxyType(
    {name: workload for module in MODULES for name, workload in module.WORKLOADS.items()}
)
RANDOM = "random_"
ZOO = "zoo-"


def find(name: str) -> Callable:
    """The workload of that name, "random_SEED" and those of the zoo included.

    Raises KeyError, with the most similar names, for another.
    """
    if name in WORKLOADS:
        return WORKLOADS[name]
    if (of_a_rank := ranks.find(name)) is not None:
        return of_a_rank
    if name.startswith(ZOO):
        from tools.oracle import zoo

        return zoo.find(name)
    if name.startswith(RANDOM) and name.removeprefix(RANDOM).isdigit():
        return random_network.random_network(int(name.removeprefix(RANDOM)))
    similar = [known for known in WORKLOADS if name in known] or get_close_matches(name, WORKLOADS, cutoff=0.4)
    raise KeyError(
        f"no workload {name!r} among {len(WORKLOADS)}, {RANDOM}SEED and {ranks.PREFIX}KIND_RANKofRANKS; "
        f"similar: {', '.join(similar[:8]) or 'none'}"
    )
