"""A snapshot's history under its own settings gives the recorded counters; under others, those of the same program."""

import json
import pickle

import pytest

from simgpu.allocator import snapshot as snapshots
from simgpu.allocator.snapshot import SnapshotError
from simgpu.session import simulated_gpu
from tests.course.playground.recorded import recorded
from tests.course.playground.wandering import MIB
from tools.playground import replay, state
from tools.playground.answers import Desk
from tools.playground.game import Refused

SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "max_split_size_mb:64,roundup_power2_divisions:8",
)
# A copy takes the same memory in the same order; what nobody can know is how often a failed request was tried.
COUNTERS = (
    "allocated_bytes.all.peak",
    "allocated_bytes.all.current",
    "reserved_bytes.all.peak",
    "reserved_bytes.all.current",
    "inactive_split_bytes.all.peak",
    "inactive_split_bytes.all.current",
    "requested_bytes.all.peak",
    "num_alloc_retries",
    "num_ooms",
    "num_device_alloc",
    "num_device_free",
)


def asked(desk, **request):
    return json.loads(desk.answer(json.dumps(request)))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_under_its_own_settings_has_the_recorded_counters(settings, seed):
    allocator, snapshot = recorded(seed, 400, settings, 450 * MIB)
    history = replay.history(snapshot, 0)
    played = replay.play(history, history.settings, 450 * MIB)
    wanted = state.counters(allocator)
    assert history.settings == settings and history.failed == played.failed == wanted["num_ooms"] > 0
    assert {key: played.counters[key] for key in COUNTERS} == {key: wanted[key] for key in COUNTERS}
    assert history.peak_reserved == wanted["reserved_bytes.all.peak"]
    assert (history.reserved, history.before) == (allocator.reserved, 0)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_replay_under_other_settings_is_the_same_program_under_these(settings):
    """On a card that is never full the program does the same, whatever the settings."""
    plenty = 10**6 * MIB
    _, snapshot = recorded(5, 400, "", plenty)
    other, _ = recorded(5, 400, settings, plenty)
    played = replay.play(replay.history(snapshot, 0), settings, plenty)
    wanted = state.counters(other)  # an emptied cache that had nothing to give leaves no trace, but counts as a wait
    assert {key: played.counters[key] for key in COUNTERS} == {key: wanted[key] for key in COUNTERS}
    assert played.failed == 0 and played.failure is None
    assert played.segments and played.moment.startswith("where reserved was highest, after ")


def test_what_a_training_took_on_the_simulated_gpu(tmp_path):
    """Lengths that change, a share of the card, steps that fail: chapter 02b's, small."""
    import torch

    path = tmp_path / "training.pickle"
    with simulated_gpu("A100-80GB"):
        torch.cuda.memory._record_memory_history()
        torch.cuda.set_per_process_memory_fraction(900 * MIB / torch.cuda.get_device_properties(0).total_memory)
        words, scores = torch.nn.Embedding(16_000, 1024).cuda(), torch.nn.Linear(1024, 16_000).cuda()
        optimizer = torch.optim.AdamW([*words.parameters(), *scores.parameters()])
        for length in (900, 300, 2600, 700, 2700, 200, 2500, 800):
            try:
                tokens = torch.zeros(length, dtype=torch.long, device="cuda")
                scores(words(tokens)).square().mean().backward()
                optimizer.step()
            except torch.cuda.OutOfMemoryError:
                pass
            optimizer.zero_grad()
        stats = torch.cuda.memory_stats()
        torch.cuda.memory._dump_snapshot(str(path))
    history = replay.history(snapshots.read(path), 0)
    assert history.failed == stats["num_ooms"] > 0
    assert history.total is not None and 0 <= history.total - stats["reserved_bytes.all.peak"] < 200 * MIB
    played = replay.play(history, history.settings, history.total)
    assert {key: played.counters[key] for key in COUNTERS} == {key: stats[key] for key in COUNTERS}
    assert "Tried to allocate" in played.failure and played.moment.startswith("at the first failure")
    better = replay.play(history, "expandable_segments:True", history.total)
    assert (better.failed, better.served) != (played.failed, played.served)
    assert better.failed + better.served >= history.failed


def test_a_history_that_begins_late():
    """What lived before is asked for first, and the end is right to the byte."""
    allocator, snapshot = recorded(3, 300, total=10**6 * MIB, late=150)
    history = replay.history(snapshot, 0)
    assert history.before > 5
    played = replay.play(history, "", 10**6 * MIB)
    wanted = state.counters(allocator)
    # A block of the large pool keeps up to 1 MiB that nobody asked for, and which does is a matter of what was before.
    assert played.counters["requested_bytes.all.current"] == wanted["requested_bytes.all.current"]
    assert f"{history.before:,} blocks with" in replay.notes(history)[0]


def test_an_emptied_cache_is_known_by_its_frames_or_by_what_follows():
    for frames in (True, False):
        allocator, snapshot = recorded(11, 400, total=10**6 * MIB, frames=frames)
        history = replay.history(snapshot, 0)
        emptied = sum(kind == replay.EMPTY for kind, *_ in history.steps)
        played = replay.play(history, "", 10**6 * MIB)
        wanted = state.counters(allocator)
        assert emptied > 3
        if frames:
            assert played.counters["num_device_free"] == wanted["num_device_free"]
        else:  # one that is followed by a new segment looks like a retry
            assert 0 < played.counters["num_device_free"] <= wanted["num_device_free"]


def test_blocks_that_wait_for_a_stream_and_private_pools_are_counted():
    _, snapshot = recorded(2, 60)
    trace = snapshot["device_traces"][0]
    at = next(i for i, event in enumerate(trace) if event["action"] == "free_requested")
    trace.insert(at + 1, trace.pop(at))  # its completion comes later now
    trace[at] = {**trace[at], "pool_id": (0, 7)}
    history = replay.history(snapshot, 0)
    assert (history.waited, history.private) == (1, 1)
    assert len(replay.notes(history)) == 2


@pytest.mark.parametrize(
    ("settings", "first", "version"),
    [
        ({"max_round_threshold": -1}, {"pool_id": (0, 0)}, (2, 13)),
        ({}, {"pool_id": (0, 0)}, (2, 12)),
        ({}, {}, (2, 11)),
    ],
)
def test_the_version_is_read_off_the_keys(settings, first, version):
    event = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, **first}
    snapshot = {"segments": [], "device_traces": [[event]], "allocator_settings": settings}
    assert replay.history(snapshot, 0).version == version


def test_what_is_no_history():
    event = {"action": "alloc", "size": 512, "stream": 0}
    with pytest.raises(SnapshotError, match="event 0, alloc: 'addr' is None, wanted a whole number"):
        replay.history({"segments": [], "device_traces": [[event]]}, 0)
    with pytest.raises(SnapshotError, match="'size' is -1"):
        replay.history({"segments": [], "device_traces": [[{**event, "addr": 0, "size": -1}]]}, 0)
    with pytest.raises(SnapshotError, match=r"no history: call torch\.cuda\.memory\._record_memory_history"):
        replay.devices({"segments": [], "device_traces": [[]]})
    _, snapshot = recorded(1, 20)
    with pytest.raises(Refused, match="Unrecognized key 'x'"):
        replay.play(replay.history(snapshot, 0), "x:1", MIB)


def test_one_address_twice_and_sizes_that_cannot_be():
    events = [{"action": "alloc", "addr": 0, "size": size, "stream": 0} for size in (4 * MIB, 2**62, 0, 8)]
    history = replay.history({"segments": [], "device_traces": [events]}, 0)
    played = replay.play(history, "", 100 * MIB)
    assert played.failed == 1 and played.counters["allocation.all.current"] == 1


def test_a_conversation_about_a_snapshot(tmp_path):
    desk = Desk()
    assert asked(desk, do="replay", total="1 GiB")["error"].startswith("there is no history")
    assert "GPU 0" in asked(desk, do="device", device=0)["error"]
    allocator, snapshot = recorded(4, 200)
    snapshot["device_traces"] = [[], snapshot["device_traces"][0]]
    for segment in snapshot["segments"]:
        segment["device"] = 1
    path = tmp_path / "x.pickle"
    snapshots.write(snapshot, path)
    answer = asked(desk, do="snapshot", path=str(path), name="mine.pickle")
    assert answer["devices"] == [1] and answer["history"]["reserved"] == allocator.reserved
    played = asked(desk, do="replay", settings="", total="600 MiB")["played"]
    assert played["counters"]["reserved_bytes.all.peak"] == answer["history"]["peak_reserved"]
    assert len(played["curve"]) <= replay.POINTS and played["curve"][-1][0] > 100
    assert asked(desk, do="replay", settings="max_split_size_mb:1", total="1 GiB")["error"].startswith(
        "CachingAllocator"
    )
    assert asked(desk, do="replay", settings="", total="")["error"].startswith("the card's memory: '' is not a size")


class Evil:
    def __reduce__(self):
        return print, ("this must never be printed",)


@pytest.mark.parametrize(
    "content", [b"", b"hello", pickle.dumps(Evil()), pickle.dumps([1, 2]), b"\x80\x05]r\xff\xff\xff\x7f."]
)
def test_a_file_that_is_no_snapshot(content, tmp_path, capsys):
    path = tmp_path / "x.pickle"
    path.write_bytes(content)
    answer = asked(Desk(), do="snapshot", path=str(path), name="holiday.jpg")
    assert not answer["ok"] and answer["error"].startswith("holiday.jpg: ") and str(tmp_path) not in answer["error"]
    assert capsys.readouterr().out == ""
