"""The environment variables that `torchrun` gives to one rank."""

from __future__ import annotations


def variables(rank: int, ranks: int, per_node: int) -> dict[str, str]:
    """The variables of rank `rank` of `ranks`, with `per_node` of them on a machine."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(rank // per_node),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCH_NCCL_ENABLE_MONITORING": "0",  # a thread that asks the store
    }
