"""Describes what connects the ranks of a world: the link inside a machine, and the network between machines."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simgpu.clock.communication import SHARE, Path
from simgpu.gpus.specs import Spec

if TYPE_CHECKING:
    from simgpu.distributed.world import World

NAMES = ("nvlink", "pcie", "infiniband")

ETHERNET = 12.5e9
"""Bytes/s per GPU in each direction, of the network between machines whose GPUs are not sold in a DGX. It is an
assumption: 100 Gb/s Ethernet. For a different network, give `link=` in bytes/s.
"""

BRIDGED = 2
"""GPUs that an NVLink bridge joins. Cards that are not sold in a DGX have NVLink by such bridges (NVIDIA RTX A6000
datasheet, NVLink bridge).
"""


def checked(link: str | float | None) -> str | float | None:
    """Returns a world's `link`, checked.

    Raises TypeError if it is neither text nor number, and ValueError for an unknown name or for a number that is not a
    bandwidth.
    """
    if link is None:
        return None
    if isinstance(link, str):
        if link.lower() not in NAMES:
            raise ValueError(
                f"link={link!r} is none that is known: they are {', '.join(map(repr, NAMES))}, or a number, the "
                "bytes per second that a rank reaches in each direction"
            )
        return link.lower()
    if isinstance(link, bool) or not isinstance(link, (int, float)):
        raise TypeError(f"link is one of {', '.join(map(repr, NAMES))} or a number of bytes per second, not {link!r}")
    if not link > 0:
        raise ValueError(f"link={link!r}: a link takes more than 0 bytes per second")
    return float(link)


class Links:
    """The links of the ranks of `world` on GPUs of model `spec`.

    `world.link` is "nvlink" or "pcie" for the link inside a machine, or "infiniband" for the network of the GPU's DGX
    for every message. A number is the bytes/s that a rank reaches in each direction to any other, without latency. None
    is NVLink inside a machine if the GPU has it, else PCIe. Between machines it is the network. Raises ValueError for a
    link that the GPU does not have.
    """

    def __init__(self, spec: Spec, world: "World"):
        self._world = world
        self._network = (spec.network or ETHERNET) * SHARE["network"]
        self._peaks = {"nvlink": spec.nvlink, "pcie": spec.host_link}
        link, bridged = world.link, not spec.network and world.per_node > BRIDGED
        if link == "nvlink" and not spec.nvlink:
            raise ValueError(f"link='nvlink': a {spec.key} has no NVLink; it has 'pcie'")
        if link == "nvlink" and bridged:
            raise ValueError(
                f"link='nvlink': an NVLink bridge joins {BRIDGED} GPUs of the kind {spec.key}, and a machine of this "
                f"world has {world.per_node}; say per_node={BRIDGED}, or link='pcie'"
            )
        if link == "infiniband" and not spec.network:
            raise ValueError(
                f"link='infiniband': there is no DGX with a {spec.key} whose network could be meant; give a number of "
                "bytes per second"
            )
        self._given = link if isinstance(link, (int, float)) else None
        default = "nvlink" if spec.nvlink and not bridged else "pcie"
        self._inside = link if isinstance(link, str) else default

    def path(self, ranks: Sequence[int]) -> Path:
        """Returns the path by which a group of ranks of the world communicate."""
        if self._given is not None:
            return Path("given", self._given, len(ranks))
        if self._inside == "infiniband":
            return Path("network", self._network, len(ranks), len(ranks))
        machines = Counter(rank // self._world.per_node for rank in ranks)
        inside = self._peaks[self._inside] * SHARE[self._inside]
        if len(machines) == 1:
            return Path(self._inside, inside, len(ranks))
        rings = min(machines.values())
        across = self._network * rings
        alone = max(machines.values()) == 1
        return Path(self._inside, across if alone else min(inside, across), len(ranks), len(machines))
