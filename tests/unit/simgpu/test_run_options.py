"""Options, plans, pictures and findings of simgpu run."""

import pytest
from matplotlib.figure import Figure

from simgpu.command import _parser, main
from simgpu.report.findings import Facts, fragmentation


def test_a_plan_is_of_one_batch_unless_more_is_said():
    assert _parser().parse_args(["fit", "model"]).batch == 1
    assert _parser().parse_args(["fit", "model", "--batch", "3"]).batch == 3


def test_the_picture_of_a_run_says_what_its_colours_are(tmp_path, monkeypatch):
    said = []
    saved = Figure.savefig

    def looked_at(figure, *args, **kwargs):
        legend = figure.axes[0].get_legend()
        said.extend([] if legend is None else [text.get_text() for text in legend.get_texts()])
        return saved(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", looked_at)
    script = tmp_path / "script.py"
    script.write_text("import torch\nx = torch.ones(1000, device='cuda')\n")
    assert main(["run", "--gpu", "T4", "--out", str(tmp_path / "out"), str(script)]) == 0
    assert {"reserved", "all of the GPU"} <= set(said)


@pytest.mark.parametrize(("cache", "said"), [(3, True), (2, True), (1, False)])
def test_a_cache_that_holds_what_is_missing_is_named(cache, said):
    facts = Facts(
        *(2**30, 2**20, 2**22), parts={"cache": cache * 2**20}, lines=(), missing=2 * 2**20, cache=cache * 2**20
    )
    assert any("expandable_segments" in found.remedy for found in fragmentation(facts)) == said


def test_two_dashes_end_the_options_of_run(tmp_path, capsys):
    (tmp_path / "script.py").write_text("import sys; print('arguments', sys.argv[1:])")
    assert (
        main(["run", "--gpu", "T4", "--", str(tmp_path / "script.py"), "--values", "--"]) == 3
    )  # no GPU memory was used
    assert capsys.readouterr().out.startswith("arguments ['--values', '--']\n")
