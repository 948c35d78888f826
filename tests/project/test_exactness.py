"""The page of the accuracy ladder is written from findings, and a test that finds less than it claims fails."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import exactness as ladder
from tests.conftest import Exactness, Writer, reference
from tests.exactness import Finding

EQUAL = Finding(1, "sequences", "the oracle", "steps", "default", 500, 500, "", {"errors": 3})
DIFFERS = replace(EQUAL, item="gc", equal=499, difference="step 499")
OTHER = Finding(2, "workloads", "the oracle", "events", "bert", 7, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rung": 8}, r"rung 8 of 'sequences': wanted one of \[1, 2, 3, 4, 5, 6, 7\]"),
        ({"equal": 501}, "501 of 500 equal"),
        ({"of": 0, "equal": 0}, "0 of 0 equal"),
        ({"equal": 499}, "499 of 500, and no difference is named"),
    ],
)
def test_a_finding_makes_sense(change, message):
    with pytest.raises(ValueError, match=message):
        replace(EQUAL, **change)


def test_results_are_written_and_others_kept(tmp_path):
    path = tmp_path / "page.json"
    ladder.save([EQUAL, DIFFERS, OTHER], path, "2.13.0")
    assert ladder.load(path) == [EQUAL, DIFFERS, OTHER]
    ladder.save([replace(EQUAL, item="new")], path, "2.14.0")
    assert ladder.load(path) == [replace(EQUAL, item="new"), OTHER]
    assert [result["torch"] for result in json.loads(path.read_text())["results"]] == ["2.14.0", "2.13.0"]


def test_another_format_is_refused(tmp_path):
    path = tmp_path / "page.json"
    path.write_text('{"format": 99}')
    with pytest.raises(ValueError, match=r"page\.json: format 99, wanted 1"):
        ladder.load(path)


@pytest.mark.parametrize(
    ("claimed", "found", "more"),
    [
        (EQUAL, EQUAL, False),
        (DIFFERS, replace(EQUAL, item="gc"), False),
        (EQUAL, replace(DIFFERS, item="default"), True),
        (DIFFERS, replace(DIFFERS, equal=498), True),
        (EQUAL, replace(EQUAL, difference="another error"), True),
        (EQUAL, OTHER, False),
    ],
)
def test_a_page_claims_no_more_than_is_found(claimed, found, more):
    said = ladder.overclaim(ladder.by_name([claimed]), found)
    assert (said is not None) == more
    assert not more or "docs/exactness.json claims" in said


def test_a_test_that_finds_less_fails():
    kept = []
    exactness = Exactness(False, lambda name, value: kept.append(value))
    exactness.page = ladder.by_name([EQUAL, DIFFERS])
    assert exactness.claimed("sequences") == ["default"]
    exactness(*vars(EQUAL).values())
    with pytest.raises(AssertionError, match="claims 500 of 500 steps of 'default' in 'sequences'"):
        exactness(*vars(replace(EQUAL, equal=1, difference="lost")).values())
    assert [value and value["equal"] for value in kept] == [None, 500, 1]


def report(nodeid, passed=True, *findings):
    properties = [("exactness", None), *(("exactness", ladder.as_property(one)) for one in findings)]
    return SimpleNamespace(
        nodeid=nodeid, when="call", passed=passed, failed=not passed, user_properties=properties if findings else []
    )


def test_the_page_is_written_when_all_went_well(tmp_path):
    writer = Writer(tmp_path / "page.json")
    writer.pytest_runtest_logreport(report("tests/a.py::b", True, EQUAL))
    writer.pytest_runtest_logreport(report("tests/a.py::c", False))
    session = SimpleNamespace(config=SimpleNamespace(rootpath=tmp_path))
    writer.pytest_sessionfinish(session)
    assert ladder.load(writer.path) == [EQUAL]
    writer.path.unlink()
    writer.pytest_runtest_logreport(report("tests/a.py::d", False, DIFFERS))
    writer.pytest_sessionfinish(session)
    assert not writer.path.exists()


def test_what_a_notebook_is_compared_with():
    stored, rehearsed = Path("notebooks/01_a.ipynb"), Path("rehearsed/H100/01_a.ipynb")
    assert reference(stored) == "the outputs stored in them, by pytest --nbval"
    assert reference(rehearsed) == "what the simulated H100 prints, by pytest --nbval"


def test_the_committed_page_is_one():
    assert {one.rung for one in ladder.load()} <= set(ladder.RUNGS)
