"""The judge of the exercises: right, wrong and empty answers of every kind."""

import pytest
import torch

from labkit import judge
from labkit.units import MiB


@pytest.fixture
def said(capsys):
    """What the judge prints of an answer."""

    def ask(*args, **kwargs):
        judge(*args, **kwargs)
        return capsys.readouterr().out.strip()

    return ask


@pytest.mark.parametrize("empty", [..., None, "", "...", {"a": ..., "b": None}, [...]])
def test_no_answer_measures_nothing(said, empty):
    def measure():
        raise AssertionError("measured without an answer")

    assert said(empty, right=measure) == "no answer yet"
    assert said(empty, right=measure, hint="look at y") == "no answer yet. Hint: look at y"


def test_right_answers_in_bytes(said):
    assert said(360 * MiB, right=lambda: 360 * MiB) == "Correct: 360.0 MiB, to the byte"
    assert said("360 MiB", right=360 * MiB, hint="unseen") == "Correct: 360.0 MiB, to the byte"


def test_wrong_answers_say_how_far_off_and_by_what(said):
    terms = {"one workspace": MiB * 65 // 8, "a copy of y": 80 * MiB}
    assert said(300 * MiB, right=380 * MiB, terms=terms) == "off by -80.0 MiB (-21.1 %): that is a copy of y too little"
    assert said(396 * MiB + MiB // 4, right=380 * MiB, terms=terms).endswith("that is 2 × one workspace too much")
    assert said(300 * MiB, right=301 * MiB, terms=terms, hint="x") == "off by -1.0 MiB (-0.3 %). Hint: x"
    said_of_layers = said(4.6875, right=2, unit="inputs", terms={"the gate's output": 2.6875})
    assert said_of_layers.endswith("that is the gate's output too much")
    assert said(1, right=0) == "off by +1 B"


def test_bytes_that_were_meant_as_mib_are_asked_back(said):
    asked = "380 without a unit is 380 B; if you meant MiB, write 380 * MiB. Hint: x"
    assert said(380, right=380 * MiB, hint="x") == asked
    assert said(4, right=16).startswith("off by -12 B")
    assert said("16 bytes", right=16) == "Correct: 16 B, to the byte"


def test_a_term_may_be_a_fraction_of_the_unit(said):
    terms = {"a share": 4 / 64, "nothing": 0.0}
    assert said(12, right=12 + 4 / 64, unit="bytes", terms=terms).endswith("that is a share too little")
    assert said(12345, right=12.5, unit="bytes", terms=terms) == "off by +12,332.500 bytes (+98660.0 %)"


def test_other_units_and_a_margin(said):
    assert said(101, right=100, unit="ms", within=0.02) == "Correct: within 2 % of 100 ms"
    assert said(1024, right=1024, unit="rows") == "Correct: 1,024 rows"
    assert said(1000, right=1024, unit="rows") == "off by -24 rows (-2.3 %)"


@pytest.mark.parametrize("answer", ["a lot", True, [3], torch.zeros(3), object()])
def test_what_is_no_number_is_one_line(said, answer):
    out = said(answer, right=MiB)
    assert out.startswith("wanted is a number of bytes") and "\n" not in out


def test_names_sets_lists_and_truths(said):
    assert said("Backward ", right="backward") == "Correct"
    assert said("forward", right="backward", hint="b") == "'forward' is not it. Hint: b"
    assert said(["a", "b"], right={"b", "a"}) == "Correct"
    assert said(True, right=True) == "Correct"
    assert said(1, right=True) == "1 is not it"
    assert said([1, 2], right=[1, 2]) == "Correct"
    assert said([1], right=[1, 2]) == "[1] is not it"
    assert said([3, 3], right=[3, 0], hint="x") == "1 of 2 are right. Hint: x"
    assert said("3 and 0", right=[3, 0]) == "wanted a list of several answers; given: str"
    assert said(4, right={2, 4}) == "wanted a set of several answers; given: int"
    assert "not it" in said(torch.zeros(2), right="backward")


def test_answers_of_several_parts_name_what_to_look_at_and_not_the_answer(said):
    right = {"allocated": True, "peak": False, "reserved": False}
    assert said(dict(right), right=right) == "Correct: all 3"
    wrong = {"allocated": True, "peak": True, "reserved": ...}
    assert said(wrong, right=lambda: right) == "1 of 3 are right; look again at peak, reserved"
    assert said(5, right=right) == "wanted a dictionary with allocated, peak, reserved; this is a int"


def test_the_parts_of_an_answer_may_be_texts_with_a_unit(said):
    right = {"nobody names it": 96 * 2**20, "named": 128 * 2**20}
    assert said({"nobody names it": "96 MiB", "named": 128 * 2**20}, right=right) == "Correct: all 2"
    wrong = {"nobody names it": "96 apples", "named": "128 KiB"}
    assert said(wrong, right=right) == "0 of 2 are right; look again at nobody names it, named"
