"""The drawings say in words what they show, count what they draw, and refuse what does not fit together."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import labkit
from helpers import drawings

NOTEBOOKS = Path(__file__).resolve().parents[3] / "notebooks"
MLP = [("Linear", "input", "its weight"), ("ReLU", "output", ""), ("Linear", "input", "its weight")]
SIZES = [("x", 32), ("h", 128), ("g", 128), ("y", 32)]


@pytest.fixture(autouse=True, scope="module")
def gpu():
    with labkit.simulated_gpu("T4"):
        yield


def test_a_tensor_that_two_operators_save_is_counted_once():
    figure = drawings.training_step(MLP, SIZES, "MiB")
    assert figure.description.startswith("Forward saves 2 tensors")  # x and g
    assert "Linear saves x; ReLU saves g; Linear saves g" in figure.description
    lines = [line for line in figure.axes[0].lines if line.get_linewidth() > 1]
    assert len(lines) == 3
    assert lines[0].get_linewidth() < lines[1].get_linewidth() == lines[2].get_linewidth()


def test_an_operator_that_saves_nothing_has_no_line():
    figure = drawings.training_step([("add", "nothing", "")], [("x", 1), ("y", 1)], "MiB")
    assert "add saves nothing" in figure.description and not figure.axes[0].lines


@pytest.mark.parametrize(
    ("operators", "message"), [(MLP[:2], "3 tensors; 4 were given"), ([*MLP[:2], ("x", "all", "")], "'all' was given")]
)
def test_a_step_that_does_not_fit_together_is_refused(operators, message):
    with pytest.raises(ValueError, match=message):
        drawings.training_step(operators, SIZES, "MiB")


def test_every_chapter_of_the_tree_exists():
    numbers = re.findall(r"\((\d\d[a-z]?)\)", drawings.decision_tree().description)
    assert len(numbers) > 8
    assert [number for number in numbers if not list(NOTEBOOKS.glob(f"{number}_*.ipynb"))] == []


def test_each_question_of_the_tree_leads_to_a_leaf():
    assert {check for check, *_ in drawings.LEAVES} == set(range(len(drawings.CHECKS)))


@given(st.lists(st.integers(1, 64), min_size=1, max_size=4), st.sampled_from([8, 16, 32]))
def test_pages_hold_all_tokens_and_waste_less_than_a_page_per_request(counts, page):
    tokens = dict(zip("ABCD", counts, strict=False))
    pages = drawings._pages(tokens, page)
    for name, count in tokens.items():
        assert round(sum(share for one, share in pages if one == name) * page) == count
    assert 0 <= len(pages) * page - sum(counts) < page * len(counts)


def test_the_pages_in_words():
    figure = drawings.kv_pages({"A": 37, "B": 90, "C": 61}, 128)
    assert figure.description.startswith("Pages leave 11 of 24 free")  # 3 + 6 + 4 pages of 16 tokens
    assert "13 pages of 16" in figure.description and "20 places in them are empty" in figure.description


@pytest.mark.parametrize(("tokens", "longest"), [({"A": 37}, 100), ({"A": 200}, 128), ({"A": 0}, 128)])
def test_requests_that_have_no_pages_are_refused(tokens, longest):
    with pytest.raises(ValueError, match="were given"):
        drawings.kv_pages(tokens, longest)
