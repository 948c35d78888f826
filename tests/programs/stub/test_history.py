"""The memory history of PyTorch, read: the moment of the peak, owners, parts, and lines of generated code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.running.stub import history
from simgpu.running.stub.history import BACKWARD, FORWARD, STEP, Windows

MIB = 2**20


def alloc(address, size, **more):
    return {"action": "alloc", "addr": address, "size": size, "frames": [], **more}


def free(address, size):
    return {"action": "free_requested", "addr": address, "size": size}


def test_the_peak_is_the_moment_with_most_allocated():
    trace = [
        {"action": "segment_alloc", "addr": 0, "size": 20 * MIB},
        alloc(0, MIB),
        alloc(MIB, 2 * MIB),
        free(0, MIB),
        alloc(4 * MIB, 100),
        alloc(0, 4 * MIB),
        free(0, 4 * MIB),
    ]
    found = history.read(trace)
    assert found.peak is not None
    assert found.peak.allocated == 6 * MIB + 512
    assert found.peak.reserved == 20 * MIB
    assert sorted(block.size for block in found.peak.blocks) == [512, 2 * MIB, 4 * MIB]
    assert found.peak.event["size"] == 4 * MIB
    assert [block.freed for block in found.blocks] == [2, None, None, 4]


def test_memory_that_ran_out_is_a_moment_of_its_own():
    found = history.read([alloc(0, MIB), {"action": "oom", "addr": 0, "size": 9 * MIB, "device_free": 5}])
    assert found.failures == 1
    assert found.failed is not None and found.failed.event["size"] == 9 * MIB
    assert [block.size for block in found.failed.blocks] == [MIB]


def test_an_owner_is_that_of_the_block_that_had_the_address_then():
    found = history.read([alloc(0, MIB), free(0, MIB), alloc(0, MIB), alloc(MIB, MIB)], first=10)
    history.assign(found, [(11, {0: "first"}), (13, {0: "second", MIB: "third", 77: "none"})])
    assert [block.owner for block in found.blocks] == ["first", "second", "third"]


WINDOWS = Windows([("backward", 4, 6), ("step", 6, 8), ("backward", 12, 14)])


@pytest.mark.parametrize(("number", "stage"), [(3, FORWARD), (4, BACKWARD), (6, STEP), (8, FORWARD), (13, BACKWARD)])
def test_stages(number, stage):
    assert WINDOWS.stage(number) == stage


def test_what_lives_until_backward_is_an_activation():
    kept = history.Block(2, 0, MIB, [], False, freed=5)
    gone = history.Block(2, 0, MIB, [], False, freed=4)
    late = history.Block(20, 0, MIB, [], False)
    none = frozenset()
    assert history.part(kept, WINDOWS, False, none) == history.ACTIVATIONS
    assert history.part(gone, WINDOWS, False, none) == history.TEMPORARIES
    assert history.part(late, WINDOWS, False, none) == history.TEMPORARIES
    assert history.part(late, WINDOWS, True, none) == history.ACTIVATIONS
    assert history.part(late, WINDOWS, True, frozenset([MIB])) == history.WORKSPACES


def test_parts_sum_up_to_what_was_reserved():
    found = history.read([{"action": "segment_alloc", "addr": 0, "size": 4 * MIB}, alloc(0, MIB)])
    assert found.peak is not None
    parts = history.parts({history.TEMPORARIES: MIB}, found.peak, MIB + 512)
    assert parts == {history.TEMPORARIES: MIB, history.ROUNDING: 512, history.CACHE: 3 * MIB - 512}
    assert sum(parts.values()) == 4 * MIB


GENERATED = """
def call(args):
    with torch.cuda._DeviceGuard(0):
        buf0 = empty_strided_cuda((2048, 4096), (4096, 1), torch.float32)
        # Topologically Sorted Source Nodes: [input_1], Original ATen: [aten.t, aten.addmm]
        extern_kernels.addmm(primals_2, buf0)
"""


def test_a_line_of_generated_code_names_operators_and_nodes(tmp_path):
    file = tmp_path / "torchinductor_me" / "ab" / "cab.py"
    file.parent.mkdir(parents=True)
    file.write_text(GENERATED)
    frame = {"filename": str(file), "line": 4, "name": "call"}
    assert history.operation([frame], BACKWARD) == "compiled t, addmm of input_1"
    fused = "[a, b, a, c, d, e], Original ATen: [aten.mul, aten.add, aten.mul, aten.sum, aten.exp]"
    file.with_name("cac.py").write_text(GENERATED.replace("[input_1], Original ATen: [aten.t, aten.addmm]", fused))
    frame = frame | {"filename": str(file.with_name("cac.py"))}
    assert history.operation([frame], BACKWARD) == "compiled mul, add, sum, exp of a, b, c and 2 more"
    assert history.operation([], BACKWARD) == "autograd"
    handed_on = {"filename": history.__file__, "line": 1, "name": "kernel"}
    assert history.operation([handed_on], BACKWARD) == "autograd"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5000)), max_size=60))
def test_the_peak_is_the_largest_sum(steps):
    """Each step allocates at an address, or frees what is there."""
    trace, live, most = [], {}, 0
    for address, size in steps:
        if address in live:
            trace.append(free(address, live.pop(address)))
        else:
            trace.append(alloc(address, size))
            live[address] = size
        most = max(most, sum(-(-one // 512) * 512 for one in live.values()))
    peak = history.read(trace).peak
    assert (0 if peak is None else peak.allocated) == most
    assert peak is None or sum(block.size for block in peak.blocks) == most
