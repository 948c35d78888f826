"""The model against what PyTorch's own allocator did in random sequences, counter by counter."""

import gzip
import json

import pytest

from tests.exactness import ORACLE
from tools.oracle.allocator_sequences import SETTINGS, STORED, differences, draw, replay

PATHS = sorted(STORED.glob("*.json.gz"))


def name_of(path):
    return path.name.removesuffix(".json.gz")


def test_every_setting_has_a_sequence():
    assert {name_of(path) for path in PATHS if "-" not in name_of(path)} == set(SETTINGS)


def test_older_versions_have_some():
    assert {"default-2.11.0", "default-2.12.1", "expandable-2.12.1"} <= {name_of(path) for path in PATHS}


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_every_counter_after_every_step(path, exactness):
    assert replay(path) == []
    stored = json.loads(gzip.decompress(path.read_bytes()))
    steps, counters = len(stored["operations"]), len(stored["keys"])
    exactness(
        1,
        "random sequences",
        ORACLE,
        "counters after each step",
        name_of(path),
        steps * counters,
        steps * counters,
        measures={"steps": steps, "counters": counters, "errors": len(stored["errors"])},
    )


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_the_stored_sequences_are_worth_replaying(path):
    """Each reaches an error, retries, and a freed segment, and holds on to more than one stream."""
    stored = json.loads(gzip.decompress(path.read_bytes()))
    reached = {stored["keys"][i] for delta in stored["deltas"] for i in delta[::2]}
    assert {"num_alloc_retries", "num_ooms", "num_device_free", "inactive_split.all.current"} - reached <= (
        {"inactive_split.all.current"} if "expandable" in path.name else set()
    )
    assert stored["errors"]
    assert {operation[3] for operation in stored["operations"] if operation[0] == "alloc"} >= {0, 3}
    if path.name.startswith("throw"):
        assert "num_oom_rejections" in reached


def test_differences_are_found():
    path = STORED / "default.json.gz"
    stored = json.loads(gzip.decompress(path.read_bytes()))
    operations = stored["operations"]
    wrong = json.loads(json.dumps(stored))
    wrong["deltas"][3] = [*wrong["deltas"][3][:-1], wrong["deltas"][3][-1] + 512]
    assert differences(stored, wrong, operations)[0].startswith("step 3 ")
    wrong = {**stored, "errors": {}}
    assert differences(stored, wrong, operations)[0].startswith("errors[")
    wrong = {**stored, "addresses": stored["addresses"][:-1]}
    assert differences(stored, wrong, operations) == [
        f"addresses: oracle has {len(stored['addresses'])}, model {len(stored['addresses']) - 1}"
    ]


def test_a_seed_draws_one_sequence():
    default = SETTINGS["default"]
    assert draw(5, 300, default) == draw(5, 300, default)
    assert draw(5, 300, default) != draw(6, 300, default)
    assert draw(5, 300, SETTINGS["fraction"])[0] == ["fraction", 0.5]
