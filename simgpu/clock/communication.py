"""Duration of a collective: bytes over the bandwidth that NCCL reaches, and the latency of a ring's steps.

A ring of n GPUs passes on the parts of a message in n - 1 steps, an all-reduce in 2(n - 1). NCCL has three protocols:
one with low latency and low bandwidth, one in between, and one with the full bandwidth. It takes the fastest
(NVIDIA/nccl, src/graph/tuning.cc, ncclTopoGetAlgoTime), and so does this module. A ring over several machines enters
and leaves each of them once. Each machine has as many rings as GPUs of the group, and each ring uses its own network
card.

Not modelled: NVLink SHARP and trees, which NCCL prefers for some all-reduces (8 H100 reach 480 GB/s of "bus bandwidth"
with NVLink SHARP, 360 without: NVIDIA/nccl-tests issue 212); the multiprocessors that NCCL's kernels take from others;
how GPUs are wired to PCIe switches, and network switches to each other.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from types import MappingProxyType

SHARE = MappingProxyType({"nvlink": 0.8, "pcie": 0.5, "network": 0.95})
"""Share of a link's peak bandwidth in each direction that NCCL's rings reach.

nvlink: 20 of 25 GB/s per link on V100 and A100, 20.6 of 25 on H100, 40.1 of 50 on B200 (NVIDIA/nccl, src/graph/topo.h).
According to nccl-tests, 8 A100 reach 230 GB/s of 300, 0.77 (issue 149). 8 H100 reach 360 of 450 in reduce-scatters and
350 in all-gathers, 0.80 and 0.78 (NVIDIA/nccl issue 1281).

pcie: the middle of the published figures, which depend on switches and CPUs: 28 GB/s of 63 for 8 RTX 5090, 0.44, and 35
for four, 0.56 (NVIDIA/nccl issue 1639); 35 to 45 of 63 for 8 H100 PCIe (Alaya NeW Cloud, "NCCL-tests in practice",
2026). GPUs that cannot reach each other's memory, or that are attached to different CPUs, have less.

network: 192 GB/s for 8 cards of 25, 0.96, in an all-reduce of DGX A100s (NVIDIA/nccl issue 812); 46 to 48 of 50 per
card, 0.92 to 0.96 (nccl-tests issue 290); 12.2 of 12.5, 0.98 (nccl-tests issue 29).
"""

PROTOCOLS = ("LL", "LL128", "Simple")
BANDWIDTH = (0.5, 0.92, 1.0)
"""Share of the ring's bandwidth, by protocol (src/graph/tuning.cc, ncclTopoTuneModel, "Various model refinements")."""

BASE = (6.6e-6, 14.0e-6, 8.4e-6)
"""Base latency of a ring in seconds, without its steps, by protocol (tuning.cc, baseLatencies)."""

STEP = MappingProxyType(
    {
        "nvlink": (0.6e-6, 1.9e-6, 3.4e-6),
        "pcie": (1.0e-6, 2.5e-6, 5.7e-6),
        "network": (2.7e-6, 4.0e-6, 14.0e-6),
    }
)
"""Latency of a step in seconds, by link and protocol (tuning.cc, hwLatencies)."""


@dataclass(frozen=True)
class Path:
    """Describes how the GPUs of a group reach each other.

    `inside`: "nvlink" or "pcie", the link to GPUs of the same machine, or "given" if the user gave its bandwidth.
    `bandwidth`: bytes/s that a rank reaches in each direction over the limiting link. `ranks`, `machines`: the number
    of GPUs and machines that take part.
    """

    inside: str
    bandwidth: float
    ranks: int
    machines: int = 1

    @property
    def link(self) -> str:
        """Returns the limiting link: the one inside a machine, or "network"."""
        return self.inside if self.machines == 1 else "network"

    def latency(self, steps: int, protocol: int) -> float:
        """Returns the latency in seconds of `steps` steps of a ring; 0 if only the bandwidth was given."""
        if self.inside == "given":
            return 0.0
        rounds = steps / (self.ranks - 1)
        across = 0 if self.machines == 1 else rounds * (self.machines - 1)
        inside = STEP["network" if self.ranks == self.machines > 1 else self.inside]
        return BASE[protocol] + (steps - across) * inside[protocol] + across * STEP["network"][protocol]

    def seconds(self, carried: int, steps: int) -> float:
        """Returns the seconds of a collective of `steps` steps whose busiest link carries `carried` bytes each way."""
        if self.ranks == 1 or steps == 0:
            return 0.0
        if self.inside == "given":
            return carried / self.bandwidth
        return min(
            self.latency(steps, protocol) + carried / (self.bandwidth * share)
            for protocol, share in enumerate(BANDWIDTH)
        )


@dataclass(frozen=True)
class Transfer:
    """Describes a transfer over a rank's links: a collective of a group, or a message to or from one other rank.

    `name`: such as "all_reduce" or "send". `members`: global ranks of the group, and `group` its name. `peer`: the
    global rank that a message goes to or comes from. `seconds`: its duration. `link`: the link and its direction.
    """

    name: str
    members: tuple[int, ...]
    seconds: float
    link: Hashable
    group: str = ""
    peer: int | None = None
