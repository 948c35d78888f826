"""The mutants of simgpu: changes are made where they are said to be, and the list of those that make no difference."""

from pathlib import Path

import pytest

from tools.mutants import changes, equivalent, lines

ROOT = Path(__file__).parents[2]
TEXT = "def f(a):\n    if a < 3:\n        return a + 1\n    raise ValueError\n"


def test_the_changes_of_a_function():
    made = {(one.line, one.old, one.new) for one in changes.of_file("f.py", TEXT)}
    assert made == {
        (2, "a < 3", "(a <= 3)"),
        (2, "3", "4"),
        (3, "return a + 1", "return None"),
        (3, "a + 1", "(a - 1)"),
        (3, "1", "2"),
        (4, "raise ValueError", "pass"),
    }
    assert all(compile(one.of(TEXT), "f.py", "exec") for one in changes.of_file("f.py", TEXT))


def test_a_change_is_found_again_where_its_file_has_changed():
    (change,) = [one for one in changes.of_file("f.py", TEXT) if one.old == "a + 1"]
    moved = '"""A line more."""\n\n' + TEXT
    found = changes.found_again(change, moved)
    assert found.line == 5 and found.of(moved) == moved.replace("a + 1", "(a - 1)")
    with pytest.raises(ValueError, match="no such place"):
        changes.found_again(change, "a = 1\n")


def test_those_that_make_no_difference_are_in_the_code():
    assert all(len(why.split()) > 4 for why in equivalent.known(ROOT).values())


def test_a_map_of_some_tests_takes_the_place_of_theirs_only():
    before = {"tests": {"a": 1, "b": 2}, "lines": {"f.py": {"1": [0, 1], "2": [1]}}}
    found = {"tests": {"c": 3, "b": 4}, "lines": {"f.py": {"2": [0], "3": [1]}}}
    merged = lines.merged(before, found, {"b", "c", "failed"})
    assert merged["tests"] == {"a": 1, "c": 3, "b": 4}
    names = list(merged["tests"])
    assert {line: [names[one] for one in ran] for line, ran in merged["lines"]["f.py"].items()} == {
        "1": ["a"],
        "2": ["c"],
        "3": ["b"],
    }
