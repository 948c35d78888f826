"""Figures: what they draw is what was measured, and each names the simulated GPU."""

import numpy as np
import pytest
import torch

import labkit
from helpers import boxes, flows
from helpers.compiling import plot_cuts
from helpers.sweeps import Sweep, formula
from labkit import plots
from labkit.ledger import Ledger
from labkit.units import MiB


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("H100") as gpu:
        yield gpu


def test_every_figure_says_simulated_and_is_drawn():
    ledger = Ledger(history=True)
    with ledger("x"):
        x = torch.zeros(MiB, device="cuda")
    line = Sweep("batch", [1, 2, 3], [MiB, 2 * MiB, 3 * MiB], stopped=4)
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


def test_the_page_map_draws_every_block_in_its_colour_and_all_rows_to_one_scale():
    torch.zeros(3, device="cuda")  # freed at once: its segment stays in the cache
    x = torch.zeros(3 * MiB // 4, device="cuda")
    small, large = plots.page_map(), plots.page_map(first=4 * MiB)
    names = [label.get_text() for label in small.axes[0].get_yticklabels()]
    assert names == ["small, 2 MiB", "large, 20 MiB"]
    for figure, size in ((small, 20), (large, 4)):
        free, used, rest = figure.axes[0].patches
        assert plots.plt.matplotlib.colors.to_hex(used.get_facecolor()) == plots.palette.blue.lower()
        assert used.get_width() * MiB == x.nbytes
        assert rest.get_width() == pytest.approx(size - x.nbytes / MiB)
        assert free.get_width() == 2
        assert figure.axes[0].get_xlim() == (0, size)
    assert "small segment of 2 MiB: 0 blocks with 0 B allocated, 1 free; large segment of 20 MiB: 1 blocks" in repr(
        small
    )


def test_an_empty_gpu_has_a_page_map_too():
    assert "nothing is reserved" in plots.page_map().axes[0].get_xlabel()


def test_parts_are_stacked_and_limited():
    figure = plots.parts({"a": {"p": MiB, "q": 2 * MiB}, "b": {"q": MiB}})
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [1, 0, 2, 1]
    with pytest.raises(ValueError, match="cannot be told apart: 'part 24'"):
        plots.parts({"a": {f"part {i}": 1 for i in range(25)}})
    with pytest.raises(ValueError, match="cannot be told apart: 'gradients 4'"):
        plots.parts({"a": {f"gradients {i}": 1 for i in range(5)}})


def test_a_kind_of_memory_has_one_colour_everywhere():
    names = ["parameters", "gradients of weights", "AdamW's state", "activations: a and b", "copy for cuBLAS", "x, y"]
    look = plots.colours([*names, "workspaces", "gradients of activations", "free in the cache"])
    kinds = ("parameters", "gradients", "optimizer states", "activations", "temporaries")
    assert [look[name] for name in names] == [*((plots.KINDS[kind], "") for kind in kinds), (plots.palette.purple, "")]
    assert look["gradients of activations"] == (plots.KINDS["gradients"], plots.HATCHES[1])
    assert look["workspaces"] == (plots.KINDS["workspace"], "")
    assert len(set(plots.KINDS.values())) == len(plots.KINDS) == 7
    figure = plots.parts({"a": {"gradients": MiB}, "b": {"parameters": MiB}})
    first, _, _, second = figure.axes[0].patches
    assert plots.colour("gradients") == plots.plt.matplotlib.colors.to_hex(first.get_facecolor()).upper()
    assert plots.colour("parameters") == plots.plt.matplotlib.colors.to_hex(second.get_facecolor()).upper()


def test_a_figure_says_in_words_what_it_shows():
    ledger = Ledger(history=True)
    with ledger("input"):
        x = torch.zeros(MiB, device="cuda")
    data, metadata = ledger.plot("a tensor, 2²⁰ numbers")._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert data["text/plain"] == (
        "[figure] Allocated memory by stage: a tensor, 2²⁰ numbers, simulated H100."
        " input adds 4.0 MiB and peaks at 4.0 MiB."
    )
    assert metadata["image/png"]["alt"] == data["text/plain"].removeprefix("[figure] ")
    assert metadata["image/png"]["title"] == "Allocated memory by stage: a tensor, 2²⁰ numbers"
    assert metadata["image/png"]["axes"] == ["MiB"]
    assert "rises to 4.0 MiB, in input, and ends at 4.0 MiB; reserved ends at 20.0 MiB." in repr(ledger.timeline())
    assert "x: input 4.0 MiB." in repr(plots.parts({"x": {"input": x.nbytes, "none": 0}}))
    line = Sweep("batch", [1, 2, 3], [MiB, 2 * MiB, 3 * MiB], stopped=4)
    assert repr(line.plot(degree=1)).endswith("1.0 MiB at 1 and 3.0 MiB at 3. Fit: 1x + 0 MiB. Out of memory at 4.")


def test_a_chapters_own_figure_has_title_and_alternative_text():
    figure = plots.lines([1, 2], {"backward": [3, 9], "step": [5, 5]}, "Peaks: a model", "batch")
    assert "backward goes from 3 to 9, at most 9 MiB; step goes from 5 to 5, at most 5 MiB." in repr(figure)
    assert repr(plots.lines([1], {"a": [1]}, "t", "batch", alt="One point.")).endswith(" One point.")
    with pytest.raises(ValueError, match="'a' has 1 values for 2 of batch"):
        plots.lines([1, 2], {"a": [1]}, "t", "batch")
    with pytest.raises(ValueError, match="a title and an alternative text"):
        plots.new("title", "")
    figure, axes = plots.new("title", "words", xlabel="ms", ylabel="MiB")
    assert (axes.get_xlabel(), axes.get_ylabel(), plots.title_of(figure)) == ("ms", "MiB", "title")


def test_the_counters_are_boxes_in_boxes():
    x = torch.zeros(1000, 1000, device="cuda")
    text = repr(boxes.plot("one tensor of 1000 × 1000"))
    assert "reserved, in segments: 20.0 MiB (free in PyTorch's cache: 16.185 MiB)" in text
    assert "allocated, in blocks: 3.815 MiB (rounding to blocks: 256 B)" in text
    assert f"requested, by tensors and workspaces: {labkit.mib(x.nbytes)}." in text
    assert "nvidia-smi: " in text and "CUDA context and what is not PyTorch's: " in text


def test_formula_of_a_fit():
    square = np.polynomial.Polynomial([437.9, -0.6039, 0.00123])
    assert formula(square) == "0.00123x² - 0.6039x + 437.9"


def test_runs_are_drawn_on_the_same_axes():
    curves = {}
    for rows in (1, 3):
        ledger = Ledger(history=True)
        with ledger("x"):
            x = torch.zeros(rows, MiB, dtype=torch.uint8, device="cuda")
            x = None
        curves[f"{rows} rows"] = ledger.curve()
    assert [(max(curve), curve[0], curve[-1]) for curve in curves.values()] == [(MiB, 0, 0), (3 * MiB, 0, 0)]
    assert x is None
    figure = plots.runs(curves, "zeros")
    assert "1 rows rises to 1.0 MiB" in repr(figure)
    assert len(figure.axes) == 1
    with pytest.raises(RuntimeError, match="history=True"):
        Ledger().curve()


def test_bars_are_sorted_and_say_their_values():
    figure = plots.bars({"small": 0.5, "none": 0, "large": 4}, "Taken: two layers", "bytes (B)", kind="temporaries")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["none", "small", "large"]
    assert [label.get_text() for label in figure.axes[0].texts] == ["0", "0.5", "4"]
    assert repr(figure).endswith("large 4; small 0.5; none 0.")
    with pytest.raises(KeyError):
        plots.bars({"one": 1}, "Taken", "B", kind="unheard of")


def test_a_cut_fills_what_is_saved():
    figure = plot_cuts({"all": {"mm": True, "tanh": True}, "least": {"mm": True, "tanh": False}}, "Cut")
    assert repr(figure).endswith("Saved are, all: mm, tanh; least: mm.")
    faces = [plots.plt.matplotlib.colors.to_hex(box.get_facecolor()) for box in figure.axes[0].patches]
    saved = plots.KINDS["activations"].lower()
    assert [face == saved for face in faces] == [True, True, True, False]


def test_a_flow_says_what_is_kept_on_its_arrows():
    row = [("Linear", 2 * MiB, "", 0), ("dropout", 0, "mask", MiB // 2), ("add", 0, "", 0)]
    figure = flows.plot([row], "A row", MiB, "MiB")
    assert "Kept into Linear 2 MiB; mask of dropout 0.5 MiB." in figure.description
    figure.canvas.draw()
    assert "Nothing is kept" in flows.plot([[("add", 0, "", 0)]], "A row").description
    with pytest.raises(ValueError, match="unit"):
        flows.plot([row], "A row", 0)
