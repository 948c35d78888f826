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


@pytest.mark.parametrize("seed", [*range(3), 100, 101])
def test_the_number_of_parameters_is_the_models(seed):
    config, *_ = estimates.drawn(seed)
    sizes = {name: value for name, value in config.items() if name != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **sizes))
    assert estimates.features(config, 1)["parameters"] == sum(one.numel() for one in model.parameters())


def test_most_configurations_that_were_kept_out_are_in_the_range(stored):
    ranges = estimates.stored()["plans"]
    held = [
        ranges[plan]["low"] <= stored["ratios"][f"{plan} {seed}"] <= ranges[plan]["high"]
        for plan in ranges
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
@pytest.mark.parametrize("seed", [0, 17, 40])
def test_its_estimate_is_that_of_the_tool(page, seed):
    config, length, batch = estimates.drawn(seed)
    for plan in estimates.ROWS:
        asked = f"estimatedPeak({json.dumps(config)}, {json.dumps(plan)}, {length * batch})"
        assert page.evaluate(asked) == pytest.approx(estimates.peak(config, plan, length * batch), rel=1e-12)


@pytest.mark.browser
def test_a_file_of_the_reader(page, tmp_path):
    config, *_ = estimates.drawn(5)
    (tmp_path / "config.json").write_text(json.dumps(config))
    page.choose_file("#file", tmp_path / "config.json")
    page.wait("document.getElementById('model').value === 'own'", 60)
    assert "An estimate for" in page.evaluate("document.getElementById('how').textContent")
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
