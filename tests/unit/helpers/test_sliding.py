"""A grid of measurements: each point once, memory's end kept as such, and a page that says what was measured."""

import json
import re
import time
from html import unescape
from itertools import product

import pytest
import torch

import labkit
from helpers.sliding import Grid, grid
from labkit.units import MiB
from tools import chromium

CARDS = ("T4", "A100-80GB", "RTX 4090")


def allocated(kind, rows, columns):
    x = torch.empty(rows, columns, MiB, dtype=torch.uint8 if kind == "bytes" else torch.float32, device="cuda")
    return torch.cuda.memory_allocated() * bool(x.nbytes)


@pytest.fixture(scope="module")
def found():
    with labkit.simulated_gpu("A100-80GB"):
        return grid(allocated, kind=("bytes", "floats"), rows=(1, 10, 100), columns=(1, 300))


def page(found, **options):
    with labkit.simulated_gpu("A100-80GB"):
        data, metadata = found.plot("an empty tensor", **options)._repr_mimebundle_()
    return data, metadata["image/png"]


def test_each_point_is_measured_and_where_memory_ends_there_is_none(found):
    assert list(found.measured) == list(product(("bytes", "floats"), (1, 10, 100), (1, 300)))
    assert found.at(kind="bytes", rows=10, columns=300) == 3000 * MiB
    assert found.at(kind="floats", columns=300, rows=10) == 12_000 * MiB
    assert found.at(kind="floats", rows=100, columns=300) is None
    assert found.at(kind="bytes", rows=100, columns=300) == 30_000 * MiB


def test_what_was_not_measured_is_not_there(found):
    with pytest.raises(KeyError, match="rows 7 was not measured: 1, 10, 100 were"):
        found.at(kind="bytes", rows=7, columns=1)
    with pytest.raises(KeyError, match="has kind, rows, columns, not rows"):
        found.at(rows=1)
    with pytest.raises(KeyError, match="'columns 2 was not measured"):
        page(found, columns=2)


@pytest.mark.parametrize(
    "axes", [{}, {"rows": (1, 2)}, {"rows": (1, 2), "columns": (3,)}, dict.fromkeys("abcd", (1, 2))]
)
def test_axes_that_cannot_be_drawn_are_refused(axes):
    with pytest.raises(ValueError, match="two or three axes are wanted, each of at least two values, not"):
        grid(lambda **_: 1, **axes)


def test_no_number_of_bytes_and_other_errors_are_not_swallowed():
    with labkit.simulated_gpu("T4"):
        with pytest.raises(ValueError, match="whole number"):
            grid(lambda **_: 0.5, a=(1, 2), b=(1, 2))
        with pytest.raises(ZeroDivisionError):
            grid(lambda a, b: 1 // a, a=(0, 1), b=(1, 2))


def test_a_figure_of_nothing_and_too_many_cards_are_refused(found):
    with pytest.raises(ValueError, match="memory ended at every point"):
        page(Grid({"a": [1, 2], "b": [1, 2]}, dict.fromkeys(product((1, 2), repeat=2))))
    with pytest.raises(ValueError, match="at most 5 cards can be told apart, not 6"):
        page(found, cards="abcdef")
    with pytest.raises(ValueError, match="RTX 4091"):
        page(found, cards=["RTX 4091"])


def test_the_still_has_title_axes_and_words(found):
    data, about = page(found, cards=CARDS)
    assert data["image/png"].startswith(b"\x89PNG")
    assert about["title"] == "Allocated peak: an empty tensor"
    assert about["axes"] == ["columns", "rows; values (GiB)"]
    assert about["alt"].startswith(
        "Allocated peak: an empty tensor, simulated A100-80GB. From 1.0 MiB at kind bytes, rows 1"
    )
    assert "12 points; out of memory at 1 of them." in about["alt"]
    assert about["alt"].endswith(
        "The smallest GPU that has more: T4 at 10, RTX 4090 at 0, A100-80GB at 1 of the points."
    )


def test_the_page_says_what_was_measured(found):
    html = page(found, cards=CARDS, kind="bytes", rows=100, columns=300)[0]["text/html"]
    shown = re.search(r'<output class="said"[^>]*>(.*?)</output>', html)
    assert shown and unescape(shown[1]) == "30000.0 MiB, less than the memory of: A100-80GB"
    data = json.loads(re.search(r"const found = (\{.*\});", html)[1])
    assert data["axes"] == [["bytes", "floats"], ["1", "10", "100"], ["1", "300"]]
    assert len(data["said"]) == len(data["wide"]) == 12
    assert data["said"][-1] == "out of memory on the GPU of this notebook" and data["wide"][-1] == 100
    assert data["said"][3] == "3000.0 MiB, less than the memory of: T4" and data["wide"][3] < 4
    assert [re.sub("<.*?>", "", line) for line in re.findall("<i .*?</i>", html)] == ["T4", "RTX 4090", "A100-80GB"]
    assert "http" not in html  # nothing from elsewhere


def test_a_grid_with_two_axes_and_without_cards():
    small = Grid({"</script>": [1, 2], "b": ["x", "<y>"]}, {(1, "x"): 1, (1, "<y>"): 2, (2, "x"): 3, (2, "<y>"): 4})
    html = page(small)[0]["text/html"]
    assert html.count("</script>") == 1 and "<y>" not in html.replace('"<y>"', "")
    assert json.loads(re.search(r"const found = (\{.*\});", html)[1])["said"] == ["1 B", "2 B", "3 B", "4 B"]


@pytest.mark.browser
def test_it_slides_in_a_browser(found, tmp_path):
    html = page(found, cards=CARDS, kind="bytes", rows=1, columns=1)[0]["text/html"]
    (tmp_path / "index.html").write_text(f"<!doctype html><meta charset=utf-8><body>{html}{html}")
    server, browser = chromium.Server(tmp_path), chromium.Chromium(420, 600)
    try:
        browser.open(server.url)
        browser.wait("document.querySelectorAll('input:not([disabled])').length == 6")
        said = "[...document.querySelectorAll('.said')].map(one => one.textContent)"
        browser.evaluate("document.querySelectorAll('input')[1].focus()")
        for _ in range(2):
            browser.press("ArrowRight", 39)
        assert browser.evaluate(said) == [
            "100.0 MiB, less than the memory of: T4",
            "1.0 MiB, less than the memory of: T4",
        ]
        browser.evaluate("document.querySelectorAll('input')[2].focus()")
        browser.press("ArrowRight", 39)
        assert browser.evaluate(said)[0] == "30000.0 MiB, less than the memory of: A100-80GB"
        assert browser.evaluate("document.documentElement.scrollWidth") <= 420
        time.sleep(0.1)
        assert [one for one in browser.said if "favicon" not in one and "404" not in one] == []
    finally:
        browser.close()
        server.close()
