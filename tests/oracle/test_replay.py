"""The model of the allocator, given the requests of the oracle's traces, obtains the same segments and counts the same.

The oracle is PyTorch's own allocator under stub libraries; no GPU was involved.
"""

import pytest

from simgpu.allocator.caching import CachingAllocator
from simgpu.allocator.physical import Device
from simgpu.recording.trace import Trace
from tests.exactness import ORACLE
from tools.oracle import store

TRACES = sorted(store.RECORDED.glob("*/*.json.gz"))
# `empty_cache`, errors and other streams are not in a trace as requests that could be repeated
REPEATABLE = {"alloc", "free_completed", "segment_alloc"}


@pytest.mark.parametrize("gpu", sorted({path.parent.name for path in TRACES}))
def test_replaying_traces_gives_their_segments_and_counters(gpu, exactness):
    replayed = 0
    for path in TRACES:
        if path.parent.name != gpu:
            continue
        trace = Trace.load(path)
        emptied = any(stage.stats["num_sync_all_streams"] for stage in trace.stages)
        if {event.action for event in trace.events} <= REPEATABLE and trace.workload != "two_streams" and not emptied:
            replay(trace)
            replayed += 1
    assert replayed > 0
    exactness(1, "segments and counters of workloads", ORACLE, "workloads", gpu, replayed, replayed)


def replay(trace):
    device = Device(total_memory=int(trace.provenance["MOCK_TOTAL"]), context=int(trace.provenance["MOCK_CTX"]))
    model = CachingAllocator(device, torch_version=(2, 13))
    blocks, segments, stages = [], [], list(trace.stages)
    for at, event in enumerate([*trace.events, None]):
        while stages and stages[0].at == at:
            compare(trace.workload, model, stages.pop(0))
            model.reset_peak_stats()
        if event is None:
            break
        if event.action == "segment_alloc":
            segments.append(event.size)
        elif event.action == "free_completed":
            model.free(blocks[event.block])
        else:
            held = model.reserved
            blocks.append(model.malloc(event.size))
            assert model.reserved - held == sum(segments), f"{trace.workload}, event {at}: {event}"
            segments.clear()
    assert not stages


def compare(workload, model, stage):
    ours = flat(model.stats())
    differing = {key: (value, ours.get(key)) for key, value in stage.stats.items() if ours.get(key, 0) != value}
    assert not differing, f"{workload} at {stage.name!r}, (the oracle's, the model's): {differing}"


def flat(stats, prefix=""):
    result = {}
    for key, value in stats.items():
        name = f"{prefix}{key}"
        result |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return result
