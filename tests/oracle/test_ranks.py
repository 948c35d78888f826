"""One rank of many on the simulated GPU does what it did on the oracle: every event and every counter at each stage.

The oracle is PyTorch's CUDA host code, NCCL's process group included, under stub libraries; no GPU was involved. Each
kind of workload runs here as one of its ranks; `pytest --exactness` runs all of them.
"""

import sys
from importlib import metadata

import pytest

from tests.exactness import ORACLE
from tests.pinned import of_pinned_torch
from tools.oracle import rank_digests
from tools.oracle.rank_digests import GPU, Stage, difference
from tools.oracle.workloads import ranks

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the worker forks, which is safe on Linux only")
pytestmark = pytest.mark.usefixtures("forked_programs")
RESULT = f"one rank of many, {GPU}"


@pytest.fixture(scope="module")
def kept():
    provenance, found = rank_digests.load()
    assert provenance["gpu"] == GPU
    if provenance["torch"].split("+")[0] != metadata.version("torch").split("+")[0]:
        pytest.skip(f"what is kept is of torch {provenance['torch']}")
    return found


def one_of_each(names):
    """One workload of each kind: as another rank each time, so that all ranks and worlds come about."""
    kinds = {}
    for name in names:
        kinds.setdefault(name.rpartition("_")[0], []).append(name)
    return [of_kind[number % len(of_kind)] for number, of_kind in enumerate(kinds.values())]


ZERO_BUBBLES = {  # allocated peak and reserved bytes of the second step
    "ranks_zero_bubble_1of2": (341_095_424, 348_127_232),
    "ranks_zbv_0of2": (317_825_536, 341_835_776),
    "ranks_zbv_7of8": (449_298_432, 471_859_200),
}


@LINUX
def test_ranks_do_what_they_do_on_the_oracle(kept, exactness):
    names = list(kept) if exactness.asked else one_of_each(kept)
    found = rank_digests.simulated(names)
    differing = {}
    for name in names:
        expected, actual = kept[name][1], found[name]
        said = actual.strip().splitlines()[-1] if isinstance(actual, str) else difference(expected, actual)
        stages = [] if isinstance(actual, str) else actual
        equal = sum(ours == theirs for ours, theirs in zip(expected, stages, strict=False))
        peak = max(stage.counters[1] for stage in expected)
        exactness(
            3, RESULT, ORACLE, "stages", name.removeprefix(ranks.PREFIX), len(expected), equal, said, {"peak": peak}
        )
        if said:
            differing[name] = said
    assert not differing


def test_what_is_kept_is_of_these_workloads(kept):
    assert set(kept) == set(rank_digests.names())
    for name, (source, stages) in kept.items():
        assert source == ranks.find(name).source, f"{name} has changed: python -m tools.oracle.rank_digests --keep"
        assert stages[-1].counters[0] <= max(stage.counters[1] for stage in stages)


def test_the_figures_of_eight_ranks(kept):
    """Bytes of two steps: the peak up to the second backward; reserved and allocated at the end."""
    for name, figures in {
        "ranks_ddp_25_0of8": (361976832, 379584512, 285224960),
        "ranks_fsdp2_resharded_0of8": (195633152, 268435456, 87546880),
        "ranks_fsdp2_kept_0of8": (226114560, 301989888, 87546880),
        "ranks_fsdp2_bf16_0of8": (147349504, 201326592, 87546880),
        "ranks_fsdp1_0of8": (197090816, 266338304, 95902720),
        "ranks_tp_sequence_0of8": (110708736, 148897792, 87629824),
    }.items():
        at = {stage.name: dict(zip(rank_digests.COUNTERS, stage.counters, strict=True)) for stage in kept[name][1]}
        upto = list(at)[: list(at).index("backward 1") + 1]
        end = at["end 1"]
        found = (
            max(at[stage]["allocated_bytes.all.peak"] for stage in upto),
            end["reserved_bytes.all.current"],
            end["allocated_bytes.all.current"],
        )
        assert found == figures, name


def test_what_differs_is_said():
    stage = Stage("forward", 3, "a", "b", (1, 2, 3, 4, 5))
    assert difference([stage], [stage]) == ""
    assert difference([stage], []) == "other stages"
    assert difference([stage], [stage._replace(events="c")]) == "before 'forward': other events"
    assert difference([stage], [stage._replace(stats="c")]) == "at 'forward': other counters"
    changed = stage._replace(counters=(1, 10, 3, 4, 5))
    assert difference([stage], [changed]) == "at 'forward': allocated_bytes.all.peak +8"


@pytest.mark.parametrize("name", ["ranks_ddp_2of4", "ranks_fsdp2_5of16"])
def test_any_rank_of_any_number_is_a_workload(name):
    rank, _, ranks_there = name.rpartition("_")[2].partition("of")
    workload = ranks.find(name)
    assert (workload.rank, workload.ranks) == (int(rank), int(ranks_there))


@pytest.mark.parametrize("name", ["ranks_ddp", "ranks_nothing_0of8", "ranks_ddp_xof8", "three_linear"])
def test_other_names_are_no_ranks(name):
    assert ranks.find(name) is None


def test_a_rank_that_the_world_does_not_have():
    with pytest.raises(KeyError, match="of 8 ranks the last one is 7"):
        ranks.find("ranks_ddp_8of8")


@of_pinned_torch
@LINUX
def test_zero_bubbles_counters():
    """The order in which these free what backward is done with is another in each run of the oracle (UNSTEADY): what is
    the same in all of them is the allocated peak and reserved memory."""
    found = rank_digests.simulated(ZERO_BUBBLES)
    assert {name: counters(stages) for name, stages in found.items()} == ZERO_BUBBLES


def counters(stages):
    assert not isinstance(stages, str), stages
    return next(stage.counters[1:3] for stage in stages if stage.name == "schedule 1")
