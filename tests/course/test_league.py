"""The league table: the pages say what docs/league.json says, and the simulated GPU gives its figures again."""

import json
from dataclasses import replace
from importlib import metadata

import pytest

from benchmarks.league import __main__ as league
from benchmarks.league import asking, oracle, page, score
from benchmarks.league.answer import GPUS, Answer
from benchmarks.league.tools import NAMES
from benchmarks.league.workloads import WORKLOADS
from tests.pinned import of_pinned_torch


@pytest.fixture(scope="module")
def found():
    return json.loads(league.FILE.read_text(encoding="utf-8"))


def test_the_pages_are_written_from_the_file(found):
    readme = league.README.read_text(encoding="utf-8")
    assert page.readme(readme, found) == readme
    assert page.long(found) == league.PAGE.read_text(encoding="utf-8")


def test_the_scores_follow_from_the_answers_and_the_oracle_s_figures(found):
    again = league.found([], found["tools"])
    assert json.loads(json.dumps(again)) == found


def test_every_workload_is_stored_for_every_tool_that_was_asked(found):
    assert set(oracle.stored()) == set(WORKLOADS) == set(found["workloads"])
    assert list(found["tools"]) == list(NAMES)
    for tool in found["tools"].values():
        assert set(tool["answers"]) == set(WORKLOADS) if tool["score"] else not tool["answers"]


@of_pinned_torch
@pytest.mark.parametrize("gpu", ["T4", "H100"])
def test_the_simulated_gpu_still_gives_the_oracle_s_peaks(gpu):
    chosen = [WORKLOADS["convolutions-4x64-64x64-fp32-adamw"], WORKLOADS["bert-4x256-64x128-eager-fp32-adamw"]]
    answers = asking.ran("simulated", gpu, chosen)
    true = oracle.stored()
    assert {name: answer.peak[gpu] for name, answer in answers.items()} == {
        workload.name: true[workload.name].peak[gpu] for workload in chosen
    }


def test_a_score_counts_what_was_wrong():
    true = {"a": Answer({"T4": 100}, {"T4": True}), "b": Answer({"T4": None}, {"T4": False})}
    said = {"a": Answer({"T4": 150}, {"T4": False}, seconds=2.0), "b": Answer({"T4": 10}, {"T4": True}, seconds=1.0)}
    row = score.score(said, true)
    assert (row["median error %"], row["worst error %"]) == (50.0, 50.0)
    assert (row["verdicts"], row["false fits"], row["false does not fit"]) == (2, 1, 1)
    refused = score.score({"a": Answer(refused="no")}, true)
    assert (refused["answered"], refused["refused"], refused["median error %"]) == (0, 1, None)


@pytest.mark.parametrize("tool", ["zero", "korthikanti", "accelerate", "torchinfo"])
def test_the_formulas_give_their_stored_answers(tool, found):
    if tool in ("accelerate", "torchinfo"):
        pytest.importorskip(tool)
        if metadata.version("transformers") != found["versions"]["transformers"]:
            pytest.skip("it looks at models of another version of transformers")
    name = "bert-4x256-64x128-eager-fp32-adamw"
    answer = asking.estimated(tool, list(GPUS), [WORKLOADS[name]])[name]
    stored = Answer(**found["tools"][tool]["answers"][name])
    if tool == "torchinfo":  # counts a storage's Python object too (sys.getsizeof): its bytes are each Python's own
        assert answer.peak == pytest.approx(stored.peak, rel=0, abs=64)
        stored = replace(stored, peak=answer.peak)
    assert replace(answer, seconds=0) == replace(stored, seconds=0)
