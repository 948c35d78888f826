"""Figures: what they draw is what was measured, and each names the simulated GPU."""

import numpy as np
import pytest
import torch

import labkit
from labkit import plots
from labkit.ledger import Ledger
from labkit.sweep import Sweep
from labkit.units import MIB


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("H100") as gpu:
        yield gpu


def test_every_figure_says_simulated_and_is_drawn():
    ledger = Ledger(history=True)
    with ledger("x"):
        x = torch.zeros(MIB, device="cuda")
    line = Sweep("batch", [1, 2, 3], [MIB, 2 * MIB, 3 * MIB], stopped=4)
    figures = [
        ledger.plot(),
        ledger.timeline(),
        plots.page_map(),
        plots.parts({"x": {"input": x.nbytes}}, measured={"x": x.nbytes}),
        line.plot(),
        line.plot(degree=1),
    ]
    for figure in figures:
        assert figure.axes[0].get_title(loc="right") == "simulated H100"
        figure.canvas.draw()
    labels = [text.get_text() for text in figures[-1].axes[0].get_legend().get_texts()]
    assert labels[0] == "measured"
    assert labels[2] == "out of memory at 4"
    assert not plots.plt.get_fignums()


def test_the_page_map_draws_every_block_in_its_colour():
    torch.zeros(3, device="cuda")  # freed at once: its segment stays in the cache
    x = torch.zeros(3 * MIB // 4, device="cuda")
    small, large = plots.page_map(), plots.page_map(first=4 * MIB)
    names = [label.get_text() for label in small.axes[0].get_yticklabels()]
    assert names == ["small, 2 MiB", "large, 20 MiB"]
    for figure, size in ((small, 20 * MIB), (large, 4 * MIB)):
        free, used, rest = figure.axes[0].patches
        assert plots.plt.matplotlib.colors.to_hex(used.get_facecolor()) == plots.BLUE.lower()
        assert used.get_width() * size == x.nbytes
        assert rest.get_width() * size == pytest.approx(size - x.nbytes)
        assert free.get_width() == 1


def test_an_empty_gpu_has_a_page_map_too():
    assert "nothing is reserved" in plots.page_map().axes[0].get_xlabel()


def test_parts_are_stacked_and_limited():
    figure = plots.parts({"a": {"p": MIB, "q": 2 * MIB}, "b": {"q": MIB}})
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [1, 0, 2, 1]
    with pytest.raises(ValueError, match="7 parts apart, not 8"):
        plots.parts({"a": {str(i): 1 for i in range(8)}})


def test_formula_of_a_fit():
    square = np.polynomial.Polynomial([437.9, -0.6039, 0.00123])
    assert plots.formula(square) == "0.00123x² - 0.6039x + 437.9"
