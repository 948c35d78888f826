"""How long a collective takes by the ring's formula, beside what others measured; and which links a world has."""

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu.clock.communication import BANDWIDTH, PROTOCOLS, SHARE, STEP, Path
from simgpu.distributed.kinds import kind
from simgpu.distributed.links import ETHERNET, Links
from simgpu.distributed.world import world_of
from simgpu.gpus.specs import SPECS, spec

GB = 1e9


RINGS = ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce", "reduce_scatter")


def path(gpu: str, ranks: int, per_node: int | None = None, link=None, members=None):
    world = world_of(0, ranks, per_node, link)
    return Links(spec(gpu), world).path(range(ranks) if members is None else members)


def seconds(name: str, nbytes: int, gpu: str, ranks: int, **world) -> float:
    return path(gpu, ranks, **world).seconds(kind(name).bytes_sent(nbytes, ranks), kind(name).steps(ranks))


def bus_bandwidth(name: str, nbytes: int, gpu: str, ranks: int, **world) -> float:
    """As nccl-tests print it (doc/PERFORMANCE.md): of the ring's bytes, by time."""
    return kind(name).bytes_sent(nbytes, ranks) / seconds(name, nbytes, gpu, ranks, **world) / GB


# GB/s of large messages, as others measured them with nccl-tests, without NVLink SHARP; sources beside `SHARE`.
@pytest.mark.parametrize(
    ("name", "gpu", "ranks", "measured", "within"),
    [
        ("all_reduce", "A100-80GB", 8, 230, 0.05),
        ("reduce_scatter", "H100", 8, 360, 0.01),
        ("all_gather", "H100", 8, 350, 0.04),
        ("all_reduce", "A100-80GB", 16, 192, 0.02),  # 8 network cards of 25 GB/s on each machine
        ("all_reduce", "RTX 5090", 4, 35, 0.11),
        ("all_reduce", "RTX 5090", 8, 28, 0.13),
    ],
)
def test_large_messages_reach_what_others_measured(name, gpu, ranks, measured, within):
    assert bus_bandwidth(name, 8 * 2**30, gpu, ranks) == pytest.approx(measured, rel=within)


def test_the_latency_of_8_bytes_among_8_h100():
    """12.9 µs by nccl-tests on a p5.48xlarge (aws/aws-k8s-tester pull request 503), where NCCL takes no ring."""
    assert seconds("all_reduce", 8, "H100", 8) == pytest.approx(12.9e-6, rel=0.17)


def test_one_rank_of_each_machine_has_one_network_card():
    """As in data parallelism beside tensor parallelism in a machine."""
    across = path("H100", 64, members=range(0, 64, 8))
    assert across.bandwidth == pytest.approx(SHARE["network"] * 50 * GB)
    assert across.link == "network" and across.machines == 8
    assert path("H100", 64, members=range(8, 16)).link == "nvlink"
    assert path("H100", 64).bandwidth == pytest.approx(SHARE["nvlink"] * 450 * GB)  # 8 cards carry more than that
    assert path("A100-80GB", 64).bandwidth == pytest.approx(8 * SHARE["network"] * 25 * GB)


@pytest.mark.parametrize("key", SPECS)
def test_a_card_has_nvlink_or_pcie_by_default(key):
    each = spec(key)
    assert path(key, 2).link == ("nvlink" if each.nvlink else "pcie")
    assert path(key, 8).link == ("nvlink" if each.network else "pcie")  # bridges join two cards
    assert path(key, 8, link="pcie").bandwidth == each.host_link * SHARE["pcie"]
    assert path(key, 8, per_node=1).bandwidth == (each.network or ETHERNET) * SHARE["network"]


def test_infiniband_is_between_all_if_it_is_named():
    assert path("H100", 8, link="InfiniBand") == path("H100", 8, per_node=1, link="infiniband")
    assert path("H100", 8, link="infiniband").link == "network"


def test_a_number_is_what_a_rank_reaches():
    assert seconds("all_gather", 8_000, "T4", 4, link=1e3) == 6.0
    assert seconds("all_gather", 8_000, "T4", 64, link=1000) == pytest.approx(7.875)
    assert seconds("all_reduce", 2**40, "T4", 4, link=math.inf) == 0.0


@given(st.sampled_from(sorted(RINGS)), st.integers(1, 2**34), st.sampled_from(["H100", "A100-40GB", "L4"]), st.data())
def test_more_bytes_and_slower_links_take_longer(name, nbytes, gpu, data):
    ranks = data.draw(st.integers(1, 64))
    time = seconds(name, nbytes, gpu, ranks)
    assert time <= seconds(name, 2 * nbytes, gpu, ranks)
    assert time <= seconds(name, nbytes, gpu, ranks, per_node=1) or ranks > 8
    assert (time == 0) == (ranks == 1)
    fastest = max(spec(gpu).nvlink, spec(gpu).host_link)
    assert time >= kind(name).bytes_sent(nbytes, ranks) / fastest


@pytest.mark.parametrize(
    ("gpu", "arguments", "error", "words"),
    [
        ("L4", {"link": "nvlink"}, ValueError, "a L4 has no NVLink"),
        ("RTX 3090", {"link": "nvlink"}, ValueError, "bridge joins 2 GPUs .* has 8"),
        ("L4", {"link": "infiniband"}, ValueError, "no DGX with a L4"),
        ("H100", {"link": "ethernet"}, ValueError, "'nvlink', 'pcie', 'infiniband', or a number"),
        ("H100", {"link": 0}, ValueError, "more than 0"),
        ("H100", {"link": -1.0}, ValueError, "more than 0"),
        ("H100", {"link": math.nan}, ValueError, "more than 0"),
        ("H100", {"link": True}, TypeError, "not True"),
        ("H100", {"link": [1]}, TypeError, "not \\[1\\]"),
    ],
)
def test_links_that_are_refused(gpu, arguments, error, words):
    with pytest.raises(error, match=words):
        simgpu.simulated_gpu(gpu, ranks=8, rank=0, **arguments)
    with simgpu.simulated_gpu(gpu), pytest.raises(error, match=words):
        simgpu.one_rank(0, of=8, **arguments).__enter__()


@pytest.mark.parametrize("name", ["rank", "per_node", "link"])
def test_a_world_has_ranks(name):
    with pytest.raises(ValueError, match=f"{name}=1 of how many ranks"):
        simgpu.simulated_gpu("H100", **{name: 1})


def test_a_copy_of_a_gpu_has_its_world_too():
    gpu = simgpu.simulated_gpu("RTX 3090", ranks=4, rank=3, per_node=2, link="nvlink")
    assert copy.deepcopy(gpu)._world == gpu._world == world_of(3, 4, 2, "nvlink")


@pytest.mark.parametrize("link", sorted(STEP))
def test_each_protocol_is_the_fastest_for_messages_of_some_size(link):
    path = Path(link, 1e11, ranks=16)  # an all-reduce takes 30 steps
    fastest = set()
    for power in range(4, 34):
        times = [path.latency(30, protocol) + 2**power / (1e11 * share) for protocol, share in enumerate(BANDWIDTH)]
        assert path.seconds(2**power, 30) == min(times)
        fastest.add(times.index(min(times)))
    assert fastest == set(range(len(PROTOCOLS)))


def test_a_ring_over_machines_crosses_the_network_once_for_each_machine_but_the_last_in_a_round():
    """An all-reduce among 16 GPUs of 2 machines: of its 30 steps, 2 (NVIDIA/nccl, src/graph/tuning.cc, nInterSteps)."""
    one, two = Path("nvlink", 1e11, ranks=16), Path("nvlink", 1e11, ranks=16, machines=2)
    for protocol in range(len(PROTOCOLS)):
        slower = 2 * (STEP["network"][protocol] - STEP["nvlink"][protocol])
        assert two.latency(30, protocol) - one.latency(30, protocol) == pytest.approx(slower)
