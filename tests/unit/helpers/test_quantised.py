"""What torchao, bitsandbytes and PEFT allocate: the stored rows, and the tables that chapter 11c makes of them."""

import pytest

from helpers import quantised
from tools.quantised import __main__ as command


@pytest.mark.parametrize("part", command.RUNS)
def test_every_run_of_the_command_is_stored_with_its_versions(part):
    assert {row["model"] for row in quantised.rows(part)} == {model for _, model in command.RUNS[part]}
    measured = command.stored()[f"{part} measured"]
    assert measured.keys() == {"date", "torch", "transformers", *command.LIBRARIES[part]}


def test_a_row_is_found_by_its_settings_and_a_doubtful_question_is_refused():
    found = quantised.row("fp8", model="chain", recipe="tensorwise", compiled=True)
    assert found["gpu"] == "H100" and found["forward adds"] > 0
    with pytest.raises(LookupError, match=r"6 rows of 'fp8' have \{'model': 'chain'\}, one was wanted"):
        quantised.row("fp8", model="chain")
    with pytest.raises(LookupError, match="0 rows of 'qlora'"):
        quantised.row("qlora", model="1B QLoRA")


def test_a_state_in_8_bits_is_a_byte_and_a_scale_per_256_and_trainer_excludes_embeddings():
    table = quantised.states()
    assert table.loc["matrix", "bitsandbytes"] == 2.03 and table.loc["matrix", "torch"] == 8
    for model in ("running", "gemma-3-270m"):
        row = quantised.row("optimizers", model=model, optimizer="Trainer")
        share = row["in embeddings"] / row["parameters"]
        assert row["states"] / row["parameters"] == pytest.approx(8 * share + (2 + 2 / 64) * (1 - share), rel=0.01)


def test_the_published_figures_are_shown_with_what_fewer_bits_changed():
    table = quantised.compared()
    assert list(table.index) == list(quantised.PUBLISHED)
    assert table.loc["Llama: float8", "change published"] == "-0.3%"
    assert list(table["change here"].iloc[::2]) == ["", "", ""]


def test_the_command_stores_a_run_in_place_of_an_earlier_one(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "STORED", tmp_path / "quantised.yaml")
    monkeypatch.setattr(command, "version", lambda name: "1.0")
    monkeypatch.setattr(command.engine, "find", lambda engine: type("Found", (), {"version": "2.0"}))
    for size in (1, 2):
        command.store("fp8", [{"model": "chain", "peak": size}])
        command.store("fp8", [{"model": "running", "peak": 10 * size}])
    assert [row["peak"] for row in command.stored()["fp8"]] == [2, 20]
    assert command.stored()["fp8 measured"]["torchao"] == "1.0"
    with pytest.raises(SystemExit, match="no such part: fp9; there are fp8, optimizers, qlora"):
        command.main(["fp9"])
