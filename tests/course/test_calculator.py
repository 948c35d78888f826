"""The page "Will it fit?": its stored tables, the estimate for other models, and what it shows in a browser."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from simgpu.gpus.specs import spec
from simgpu.report.verdict import CONTEXT_UNCERTAINTY
from tests import pinned
from tools import chromium
from tools.calculator import build, estimates, tables
from tools.calculator.presets import BATCHES, MODELS, PLANS, cells


@pytest.fixture(scope="module")
def stored():
    return tables.stored()


def test_every_cell_is_stored_and_no_other(stored):
    assert list(stored["cells"]) == [tables.key(cell) for cell in cells()]
    assert list(stored["differences"]) == tables.gpus()


def test_a_capacity_is_at_least_the_peak_and_at_most_what_nvidia_smi_shows(stored):
    context = spec(stored["base"]).context
    for peak, reserved, smallest in stored["cells"].values():
        assert peak + context <= smallest <= reserved + context


def test_a_larger_batch_allocates_no_less(stored):
    """The lower end of the range between two computed batches relies on it. Less than the margin does not matter."""
    for model, plan, gpus, length, batch in cells():
        larger = stored["cells"].get(tables.key((model, plan, gpus, length, 2 * batch)))
        if larger:
            peak, _, _ = stored["cells"][tables.key((model, plan, gpus, length, batch))]
            assert peak <= larger[0] + CONTEXT_UNCERTAINTY


@pytest.mark.parametrize("cell", [("gpt2", "full", 1, 256, 4), ("llama-3.2-1b", "checkpoint", 8, 512, 1)])
@pinned.of_pinned_torch
def test_a_cell_computed_again_is_equal(stored, cell):
    assert list(tables.measured(cell)) == stored["cells"][tables.key(cell)]


@pytest.mark.parametrize(
    "cell", [("gpt2", "full", 1, 256, 3), ("gpt2", "mixed", 1, 512, 6), ("bert-base", "checkpoint", 1, 256, 24)]
)
@pinned.of_pinned_torch
def test_a_batch_between_two_computed_ones_is_in_their_range(stored, cell):
    *of, batch = cell
    below = max(one for one in BATCHES if one < batch)
    above = min(one for one in BATCHES if one > batch)
    smaller, larger = (stored["cells"][tables.key((*of, one))] for one in (below, above))
    context = spec(stored["base"]).context
    assert smaller[0] + context <= tables.measured(cell)[2] <= max(smaller[1], larger[1]) + context


@pytest.mark.parametrize("cell", [("llama-3.2-1b", "lora", 1, 4096, 1), ("llama-3.2-1b", "checkpoint", 8, 1024, 2)])
@pinned.of_pinned_torch
def test_a_length_that_was_not_computed_needs_what_as_many_tokens_need(stored, cell):
    model, plan, gpus, length, batch = cell
    tokens = [one for one in MODELS[model].lengths if length * batch % one == 0 and length * batch // one in BATCHES]
    equal = [stored["cells"][tables.key((model, plan, gpus, one, length * batch // one))][2] for one in tokens]
    error = tables.same_tokens(stored["cells"])
    assert len(equal) > 1 and error < 0.01
    assert min(equal) * (1 - error) <= tables.measured(cell)[2] <= max(equal) * (1 + error)


@pytest.mark.parametrize("seed", [*range(3), 100, 101])
def test_the_number_of_parameters_is_the_models(seed):
    config, *_ = estimates.drawn(seed)
    sizes = {name: value for name, value in config.items() if name != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **sizes))
    assert estimates.features(config, 1)["parameters"] == sum(one.numel() for one in model.parameters())


def test_most_configurations_that_were_kept_out_are_in_the_range(stored):
    ranges = estimates.stored()["ways"]
    held = [
        ranges[way]["low"] <= stored["ratios"][f"{way} {seed}"] <= ranges[way]["high"]
        for way in ranges
        for seed in estimates.KEPT_OUT
    ]
    assert sum(held) >= 0.8 * len(held)


def test_a_folder_with_something_else_is_not_replaced(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds something else"):
        build.build(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"


# In a browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if chromium.FOUND is None:
        pytest.skip("there is no Chromium")
    pytest.importorskip("websocket")
    opened = chromium.Chromium()
    opened.open(build.build(tmp_path_factory.mktemp("site") / "will_it_fit").as_uri())
    opened.wait("document.querySelectorAll('#cards tr').length > 0", 60)
    yield opened
    opened.close()


@pytest.mark.browser
def test_it_opens_from_a_file_without_errors_or_requests(page):
    assert page.said == []
    assert all(address.startswith(("file:", "data:")) for address in page.requested)


def _choose(page, cell) -> str:
    model, plan, gpus, length, batch = cell
    choice = {"model": model, "plan": plan, "gpus": gpus, "length": length, "batch": batch}
    return page.evaluate(f"choose({json.dumps(choice)}); document.getElementById('needs').textContent")


@pytest.mark.browser
def test_it_shows_what_is_stored(page, stored):
    cell = ("llama-3-8b", "lora", 1, 2048, 2)
    smallest = stored["cells"][tables.key(cell)][2]
    assert f"{smallest / 2**30:.1f} GiB" in _choose(page, cell)
    command = page.evaluate("document.getElementById('command').textContent")
    assert PLANS["lora"].options in command and "--batch 2 --length 2048" in command
    for card, difference in stored["differences"].items():
        name = json.dumps(card)
        row = f"[...document.querySelectorAll('#cards tr')].find((one) => one.firstChild.textContent === {name})"
        spare = spec(card).total_memory - smallest - difference[0]
        verdict = page.evaluate(f"{row}.querySelector('.verdict').textContent")
        if spare < -CONTEXT_UNCERTAINTY:
            assert verdict == "no"
        elif spare - difference[1] + difference[0] >= CONTEXT_UNCERTAINTY:
            assert verdict == "yes"
        else:
            assert verdict == "too close"


@pytest.mark.browser
def test_a_batch_that_was_not_computed_has_a_range(page, stored):
    context = spec(stored["base"]).context
    low = stored["cells"][tables.key(("gpt2", "full", 1, 1024, 8))][0] + context
    high = stored["cells"][tables.key(("gpt2", "full", 1, 1024, 16))][1] + context
    assert f"{low / 2**30:.2f} to {high / 2**30:.1f} GiB" in _choose(page, ("gpt2", "full", 1, 1024, 11))
    assert "from what a batch of 8 allocates to what 16 reserves" in page.evaluate(
        "document.getElementById('how').textContent"
    )


@pytest.mark.browser
def test_a_length_between_two_computed_ones(page, stored):
    model, plan, gpus = "llama-3-8b", "lora", 1
    assert "4,096 tokens were not computed" in page.evaluate(
        f"choose({json.dumps({'model': model, 'plan': plan, 'gpus': gpus, 'length': 4096, 'batch': 2})}); "
        "document.getElementById('how').textContent"
    )
    low, high = page.evaluate("(({ low, high }) => [low, high])(answer(read()))")
    equal = [stored["cells"][tables.key((model, plan, gpus, *one))][2] for one in ((2048, 4), (8192, 1), (512, 16))]
    assert low <= min(equal) and max(equal) <= high


@pytest.mark.browser
def test_the_card_of_the_reader(page, stored):
    """It is in the sentence, in the table and in the command."""
    choice = {"model": "llama-3-8b", "plan": "lora", "gpus": 1, "length": 2048, "batch": 1, "card": "RTX 4090"}
    shown = page.evaluate(f"choose({json.dumps(choice)}); document.getElementById('needs').textContent")
    smallest = stored["cells"][tables.key(("llama-3-8b", "lora", 1, 2048, 1))][2]
    low, _ = stored["differences"]["RTX 4090"]
    spare = spec("RTX 4090").total_memory - smallest - low
    assert "fits on RTX 4090, with " in shown and f"{spare / 2**30:.1f} GiB to spare" in shown
    assert page.evaluate("document.querySelector('tr.chosen th').textContent") == "RTX 4090"
    assert '--gpu "RTX 4090"' in page.evaluate("document.getElementById('command').textContent")


@pytest.mark.browser
def test_a_choice_without_an_answer_says_why_and_has_the_command(page):
    _choose(page, ("llama-3-8b", "full", 8, 2048, 1))
    why = page.evaluate("document.getElementById('how').textContent")
    assert "not computed in advance" in why and "all weights, bf16, checkpointing" in why
    assert "--ranks 8" in page.evaluate("document.getElementById('command').textContent")
    assert page.evaluate("document.getElementById('table').hidden")


@pytest.mark.browser
def test_the_largest_batch_is_a_range_between_computed_ones(page, stored):
    _choose(page, ("llama-3-8b", "lora", 1, 2048, 1))
    shown = page.evaluate(
        "[...document.querySelectorAll('#cards tr')].map((row) => [...row.cells].map((one) => one.textContent))"
    )
    fits = {row[0]: row[-1] for row in shown}
    assert fits["RTX 3060"] == "none"
    for name, largest in fits.items():
        numbers = [int(word) for word in largest.split() if word.isdigit()]
        for batch in (one for one in BATCHES if numbers and one <= numbers[0]):
            cell = stored["cells"][tables.key(("llama-3-8b", "lora", 1, 2048, batch))]
            assert cell[2] + stored["differences"][name][1] + CONTEXT_UNCERTAINTY <= spec(name).total_memory


@pytest.mark.browser
@pytest.mark.parametrize("seed", [0, 17, 40])
def test_its_estimate_is_that_of_the_tool(page, seed):
    config, length, batch = estimates.drawn(seed)
    for way in estimates.ROWS:
        plan, gpus = estimates.split(way)
        asked = f"estimatedPeak({json.dumps(config)}, {json.dumps(plan)}, {gpus}, {length * batch})"
        assert page.evaluate(asked) == pytest.approx(estimates.peak(config, way, length * batch), rel=1e-12)


@pytest.mark.browser
def test_a_file_of_the_reader(page, tmp_path):
    config, *_ = estimates.drawn(5)
    (tmp_path / "config.json").write_text(json.dumps(config))
    page.choose_file("#file", tmp_path / "config.json")
    page.wait("document.getElementById('model').value === 'own'", 60)
    assert "An estimate for" in page.evaluate("document.getElementById('how').textContent")
    for gpus, words in ((8, "12 random configurations"), (2, "12 random configurations"), (1, "24 random")):
        page.evaluate(f"choose({{...read(), plan: 'checkpoint', gpus: {gpus}}})")
        assert words in page.evaluate("document.getElementById('how').textContent")
    page.evaluate("choose({...read(), plan: 'qlora'})")
    assert "no formula for it was compared" in page.evaluate("document.getElementById('how').textContent")
    assert "--qlora 16" in page.evaluate("document.getElementById('command').textContent")
    (tmp_path / "other.json").write_text('{"model_type": "gemma2"}')
    page.choose_file("#file", tmp_path / "other.json")
    page.wait("!document.getElementById('file-error').hidden", 60)
    said = page.evaluate("document.getElementById('file-error').textContent")
    assert '"gemma2"' in said and "llama, mistral, qwen2" in said


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 420])
def test_no_horizontal_scroll(page, width):
    page.resize(width, 900)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_every_model_has_a_configuration_that_transformers_knows():
    for model in MODELS.values():
        sizes = {name: value for name, value in model.config.items() if name not in ("model_type", "architectures")}
        made = AutoConfig.for_model(model.config["model_type"], **sizes)
        assert all(getattr(made, name) == value for name, value in sizes.items())
