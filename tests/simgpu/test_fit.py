"""simgpu fit: whether a plan fits on a GPU, and what would make it."""

import json
import sys
import textwrap

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import simgpu
from simgpu.command import main
from simgpu.fitting import measuring
from simgpu.fitting.plan import Plan
from simgpu.fitting.search import Search
from simgpu.fitting.subject import of_config
from simgpu.report.owners import ACTIVATIONS, PARAMETERS, STATES
from tests.simgpu.four_layers import WEIGHTS, layers, steps

MIB = 2**20
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
}


LIBRARIES = {
    "timm": """
        from torch import nn
        def list_models(): return ["tiny_net"]
        def create_model(name, pretrained):
            assert name == "tiny_net" and not pretrained
            model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
            model.default_cfg = {"input_size": (3, 8, 8)}
            return model
        """,
    "torchvision": """
        from types import SimpleNamespace
        from torch import nn
        models = SimpleNamespace()
        models.list_models = lambda module: ["small_net"]
        models.get_model = lambda name, weights: nn.Sequential(nn.Flatten(), nn.Linear(3 * 224 * 224, 10))
        """,
}


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    """Packages in the place of timm and torchvision, with a model each: what fit asks of them."""
    for name, text in LIBRARIES.items():
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text(textwrap.dedent(text))
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield
    for name in LIBRARIES:
        sys.modules.pop(name, None)


@pytest.fixture
def layered():
    return simgpu.fit(layers, 256, inputs=lambda size: torch.zeros(size, 512), gpu="T4")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "small-llama" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))
    return str(path)


def test_a_function_that_makes_a_model(layered):
    assert layered.fits
    assert (layered.parts[PARAMETERS], layered.parts[STATES]) == (WEIGHTS, 2 * WEIGHTS)
    assert str(layered).splitlines()[0].startswith("layers (adamw, batch 256) fits on a simulated T4, with ")
    assert "A step takes " in str(layered) and "Not modelled\n  nothing" in str(layered)
    assert layered.needs == layered.nvidia_smi


def test_the_same_as_the_script_on_the_simulated_gpu(layered):
    with simgpu.simulated_gpu("T4"):
        torch.cuda.init()
        with torch.device("cuda"):
            model = layers()
        peaks = steps(model, torch.optim.AdamW(model.parameters()))
    assert (layered.peak, layered.reserved) == peaks


def test_a_module_stays_as_it_is():
    model = layers().to(torch.bfloat16)
    found = simgpu.fit(model, 8, "sgd", inputs=torch.zeros(8, 512, dtype=torch.bfloat16))
    assert found.parts[PARAMETERS] == WEIGHTS // 2
    assert next(model.parameters()).device.type == "cpu" and next(model.parameters()).grad is None


def test_largest_batch_fits_and_one_more_does_not():
    found = simgpu.fit(layers, inputs=lambda size: torch.zeros(size, 512), gpu="T4", memory="260 MiB")
    best = found.largest("batch")
    assert found.of(Plan(batch=best)).report.completed
    assert not found.of(Plan(batch=best + 1)).report.completed
    assert len(found._known) < 30


def test_the_search_for_the_largest_runs_few_plans_and_none_twice():
    found = simgpu.fit(layers, 16, inputs=lambda size: torch.zeros(size, 64, 512), gpu="T4", memory="400 MiB")
    best = found.largest("batch")
    tried = {plan.batch for plan, _, _ in found._known}
    assert len(tried) <= 10 and best > 64 and max(tried) < 2 * best
    assert found.of(found.plan, memory=2**50).report.nvidia_smi == found.nvidia_smi
    again = found.changed(batch=best)  # what is known of the model is known of another plan for it
    assert again.measured is found.of(again.plan) and again.largest("batch") == best


def test_a_plan_that_met_the_limit_is_run_again_without_one():
    """There the cache was given back, and a larger GPU would show more."""
    like = {"inputs": lambda size: torch.zeros(size, 512), "gpu": "T4"}
    large = simgpu.fit(layers, 20_000, **like)
    tight = simgpu.fit(layers, 20_000, memory=large.peak + large.report.context + 8 * MIB, **like)
    assert tight.completed and tight.measured.retried and not large.measured.retried
    assert tight.nvidia_smi < large.nvidia_smi
    assert tight.of(tight.plan, memory=2**50).report.nvidia_smi == large.nvidia_smi


def test_nothing_fits():
    found = simgpu.fit(layers, 256, inputs=lambda size: torch.zeros(size, 512), gpu="T4", memory="160 MiB")
    assert (found.fits, found.status, found.largest("batch")) == (False, 1, 0)
    page = str(found)
    assert page.startswith("layers (adamw, batch 256) does not fit on a simulated T4: ")
    assert f"It would use up to {found.needs / MIB:g} MiB as nvidia-smi shows it." in page
    assert "Findings" in page


def test_every_gpu_and_the_smallest(layered):
    every = layered.every_gpu()
    assert all(every.values()) and next(iter(every)) == layered.cheapest()
    large = simgpu.fit(layers, 1_000_000, inputs=lambda size: torch.zeros(size, 512))
    smaller = [name for name, fits in large.every_gpu(["T4", "A100-40GB", "A100-80GB", "H200"]).items() if not fits]
    assert smaller == ["T4"]
    assert large.nvidia_smi > 15 * 2**30


@pytest.mark.parametrize(("checkpoint", "layers_with_one"), [(False, 0), ("half", 4), (True, 7)])
def test_half_of_the_checkpoints_are_every_second_layers(monkeypatch, checkpoint, layers_with_one):
    found, before = [], measuring._checkpointed
    monkeypatch.setattr(measuring, "_checkpointed", lambda forward: found.append(forward) or before(forward))

    def model():
        return nn.Sequential(*(layers()[0] for _ in range(7)))

    simgpu.fit(model, 8, "sgd", inputs=lambda size: torch.zeros(size, 512), gpu="T4", checkpoint=checkpoint)
    assert len(found) in (layers_with_one, 2 * layers_with_one)  # a plan may be measured twice
    assert bool(found) == bool(layers_with_one)


def test_checkpoints_and_accumulation_save():
    apart = simgpu.fit(layers, 4096, inputs=lambda size: torch.zeros(size, 512), gpu="T4")
    halves = apart.of(Plan(batch=2048, accumulate=2)).report
    assert halves.parts[ACTIVATIONS] < apart.parts[ACTIVATIONS]
    assert apart.of(Plan(batch=4096, checkpoint="half")).report.peak < apart.peak


# --- configurations of transformers ---------------------------------------------------------------------


def test_a_configuration_with_lora(config):
    full = simgpu.fit(config, 2, gpu="T4", length=128)
    adapted = simgpu.fit(config, 2, gpu="T4", length=128, lora=8)
    assert full.subject.name == "small-llama"
    # q, k, v, o, gate, up, down: rank × (in + out), two layers
    shapes = [(256, 256), (256, 64), (256, 64), (256, 256), (256, 704), (256, 704), (704, 256)]
    adapters = 2 * 8 * sum(map(sum, shapes)) * 4
    assert adapted.parts[STATES] == 2 * adapters
    assert adapted.parts[PARAMETERS] - full.parts[PARAMETERS] == adapters
    assert adapted.peak < full.peak


def eight_bit(shapes, full=()):
    """Bytes of bitsandbytes' AdamW8bit for parameters of these shapes, in blocks of 512: two states of a byte with a
    float32 scale for each 256 of them; two of four bytes for those in `full` and below 4096; two tables of 256."""
    found = [1024, 1024]
    for name, numel in shapes.items():
        each = [4 * numel] if name in full or numel < 4096 else [numel, 4 * -(-numel // 256)]
        found += 2 * each
    return sum(-(-nbytes // 512) * 512 for nbytes in found)


def test_eight_bit_states_are_those_of_bitsandbytes_and_of_the_trainer(config):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**LLAMA))
    shapes = {name: one.numel() for name, one in model.named_parameters()}
    eight = simgpu.fit(config, 2, "adamw-8bit", gpu="T4", length=128)
    assert eight.parts[STATES] == eight_bit(shapes, full={"model.embed_tokens.weight"})
    assert eight.parts[STATES] - eight_bit(shapes) == pytest.approx(6 * 1024 * 256, rel=0.05)
    assert "8-bit states are those of bitsandbytes' AdamW8bit" in str(eight)


def test_a_module_without_a_trainer_has_eight_bit_states_for_embeddings_too():
    def model():
        return nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 10), nn.Linear(10, 500, bias=False))

    inputs = torch.zeros(4, 8, dtype=torch.long)
    found = simgpu.fit(model, 4, "adamw-8bit", inputs=inputs, gpu="T4")
    assert found.parts[STATES] == eight_bit({"embedding": 64_000, "weight": 640, "bias": 10, "last": 5000})


def test_muon_is_for_hidden_matrices_and_adamw_for_the_rest(config):
    found = simgpu.fit(config, 2, "muon", gpu="H100", length=128)
    with simgpu.simulated_gpu("H100"):
        torch.cuda.init()
        with torch.device("cuda"):
            model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**LLAMA))
        model.train()
        named = dict(model.named_parameters())
        hidden = [one for name, one in named.items() if name.endswith("proj.weight")]
        rest = [one for name, one in named.items() if not name.endswith("proj.weight")]
        optimizers = torch.optim.Muon(hidden), torch.optim.AdamW(rest)
        for _ in range(2):
            batch = torch.zeros(2, 128, dtype=torch.long).to("cuda")
            labels = torch.zeros(2, 128, dtype=torch.long).to("cuda")
            model(input_ids=batch, labels=labels).loss.backward()
            for one in optimizers:
                one.step()
            for one in optimizers:
                one.zero_grad()
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    assert (found.peak, found.reserved) == peaks


def test_four_bits_are_by_formula_and_say_so(config):
    lora = simgpu.fit(config, 2, gpu="T4", length=128, lora=8, dtype="bf16")
    four = simgpu.fit(config, 2, gpu="T4", length=128, lora=8, dtype="bf16", four_bit=True)
    linear = 2 * (2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 704)
    assert lora.parts[PARAMETERS] - four.parts[PARAMETERS] == pytest.approx(linear * (2 - 0.516), rel=1e-3)
    assert "4-bit weights (NF4, double quantization) are by formula" in str(four)


def test_serving_keeps_the_cache_of_the_formula(config, capsys):
    assert main(["fit", config, "--serve", "--length", "512", "--batch", "64", "--gpu", "T4"]) == 0
    token = 2 * 2 * 2 * 32 * 4
    assert f"KV cache, by formula: {token:,} B a token, 0.50 MiB a request of 512 tokens." in capsys.readouterr().out
    one, more = (simgpu.fit(config, batch, None, length=512, gpu="T4") for batch in (64, 128))
    assert more.peak - one.peak >= 64 * 512 * token


def test_the_command(config, capsys):
    arguments = ["--train", "adamw", "--dtype", "bf16", "--batch", "2", "--length", "64", "--lora", "4", "--checkpoint"]
    assert main(["fit", config, "--gpu", "RTX 4090", *arguments, "--every-gpu"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(
        "small-llama (adamw, bf16, batch 2 × 64, LoRA 4, checkpoints) fits on a simulated RTX 4090, with "
    )
    assert "The smallest on which it fits: " in page
    assert main(["fit", config, "--memory", "600 MiB", "--batch", "64"]) == 1
    capsys.readouterr()
    assert main(["fit", config, "--length", "64", "--table"]) == 0
    table = capsys.readouterr().out
    assert main(["fit", config, "--largest", "length"]) == 0
    longest = simgpu.fit(config).subject.longest
    assert f"The largest length that fits: {longest}, the most that small-llama takes" in capsys.readouterr().out
    assert table.startswith("| simulated GPU (MiB) | batch 1 |") and "| T4, " in table and "; simulated. " in table


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(("name", "inputs"), [("tiny_net", 3 * 8 * 8), ("small_net", 3 * 224 * 224)])
def test_names_of_timm_and_torchvision(name, inputs, capsys):
    assert (
        main(["fit", name, "--batch", "4", "--gpu", "T4", "--serve", "--largest", "batch", "--memory", "400 MiB"]) == 0
    )
    page = capsys.readouterr().out
    assert page.startswith(f"{name} (inference, batch 4) fits on a simulated T4, with ")
    largest = int(page.rsplit(":", 1)[1])
    assert 4 * inputs * largest < 400 * MIB and largest >= 100
    found = simgpu.fit(name, 4, gpu="T4")
    assert found.parts[PARAMETERS] == 4 * (inputs * 10) + 512


@pytest.mark.parametrize("image_size", [32, [32, 32]])
def test_images_are_of_the_size_that_a_configuration_says(image_size):
    """A number, or height and width: transformers takes both."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.ViTConfig(image_size=image_size, patch_size=8, **sizes)
    (inputs,) = of_config(config).batch(3, None).values()
    assert inputs.shape == (3, 3, 32, 32)


# --- techniques -------------------------------------------------------------------------------------------


def test_techniques_alone_together_and_under_a_budget():
    found = simgpu.fit(layers, 4096, inputs=lambda size: torch.zeros(size, 512), gpu="T4")
    table = found.techniques("220 MiB")
    alone = {row.applied[0]: row for row in table.alone}
    assert alone["checkpoints, every layer"].peak < alone["checkpoints, every second layer"].peak < table.before.peak
    assert alone["accumulation, 4 × 1024"].peak < alone["accumulation, 2 × 2048"].peak < table.before.peak
    assert alone["checkpoints, every layer"].step > table.before.step
    peaks = [table.before.peak, *(row.peak for row in table.together)]
    assert peaks == sorted(peaks, reverse=True)
    assert table.best is not None and table.best.fits and table.best.applied
    assert found.of(table.best.plan, memory=220 * MIB).report.completed
    text = str(table)
    assert "simulated T4" in text and "The fastest that fits into 220.00 MiB: " in text
    assert found.techniques("1 MiB").best is None


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-model"], "no file and no model 'no-such-model'"),
        (["missing.json"], "'missing.json' cannot be read"),
        (["text.json"], "'text.json' is no configuration of transformers"),
        (["unknown.json"], "knows no model_type 'nothing-like-this'"),
        (["CONFIG", "--batch", "0"], "batch is a whole number of 1 or more, not 0"),
        (["CONFIG", "--length", "-3"], "length is a whole number of 1 or more, not -3"),
        (["CONFIG", "--dtype", "fp7"], "dtype is one of fp32"),
        (["CONFIG", "--train", "adamm"], "train is one of adamw"),
        (["CONFIG", "--gpu", "RTX 4O90"], "did you mean 'RTX 4090'"),
        (["CONFIG", "--budget", "many"], "'many' is no size"),
        (["CONFIG", "--lora", "0"], "lora is a whole number of 1 or more, not 0"),
        (["CONFIG", "--length", "513"], "small-llama takes 512 tokens at most, not 513"),
        (["CONFIG", "--serve", "--techniques"], "the techniques are those of training"),
        (["CONFIG", "--memory", "1 MiB"], "does not hold the CUDA context"),
        (["resnet0"], "no file and no model 'resnet0'"),
        (["tiny_net", "--length", "7"], "tiny_net has no length"),
        (["tiny_net", "--largest", "length"], "tiny_net has no length"),
    ],
)
def test_bad_input_gets_one_line(config, libraries, tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("[1, 2")
    (tmp_path / "unknown.json").write_text('{"model_type": "nothing-like-this"}')
    assert main(["fit", *(config if one == "CONFIG" else one for one in arguments)]) == 2
    written = capsys.readouterr()
    assert said in written.err and written.err.count("\n") == 1 and written.out == ""


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (3, {}, "3 is no model"),
        (layers, {}, "wants inputs="),
        (lambda: nn.Bilinear(2, 2, 2), {"inputs": torch.zeros(1, 2), "lora": 2}, "the model has none"),
        (lambda: nn.Linear(2, 2), {"inputs": torch.zeros(1, 2), "checkpoint": True}, "the model has no list of them"),
        (layers, {"inputs": torch.zeros(1, 512), "four_bit": True}, "say the rank"),
    ],
)
def test_what_cannot_be_fitted(model, options, said):
    with pytest.raises(ValueError, match=said):
        simgpu.fit(model, **options)


@given(
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**9),
    st.sampled_from([1, 8, 500]),
    st.booleans(),
    st.sampled_from([0, 0.5, 1, 40]),
)
def test_the_search_finds_the_largest(slope, flat, limit, guess, steps, known):
    """Whatever is needed, as long as it grows, finds the same as trying one after the other would, whatever was said of
    how much of it grows."""

    def needs(number):
        found = max(flat, slope * number)
        return found // 2**20 * 2**20 if steps else found

    search = Search(guess, 2**20)
    for _ in range(60):
        if search.done:
            break
        need = needs(search.guess)
        search.tell(need <= limit, need, round(known * need), limit)
    assert search.done
    assert search.good == 0 or needs(search.good) <= limit
    assert search.bad == 2**20 or needs(search.bad) > limit


@pytest.mark.parametrize(("fits", "expected"), [(True, 420 + 1 + 4), (False, 420 - 1 - 4)])
def test_a_guess_beside_the_line_is_a_hundredth_to_its_other_side(fits, expected):
    search = Search(100, 1000)
    search.tell(True, 100, 100, 500)
    assert search.guess == 500
    search.tell(False, 600, 0, 500)
    assert search.guess == 420  # on the line from (100, 100) to (500, 600)
    search.tell(fits, 500 if fits else 501, 0, 500)
    assert search.guess == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "adamw, batch 1"),
        ({"train": None}, "inference, batch 1"),
        ({"train": "adamw", "dtype": "bf16", "batch": 8, "length": 2048}, "adamw, bf16, batch 8 × 2048"),
        ({"train": "sgd", "accumulate": 4, "autocast": "bf16"}, "sgd, batch 1, 4 accumulated, autocast bf16"),
        ({"train": "adamw", "lora": 16, "checkpoint": True}, "adamw, batch 1, LoRA 16, checkpoints"),
        ({"train": "adamw", "lora": 8, "four_bit": True}, "adamw, batch 1, QLoRA 8"),
        ({"checkpoint": "half"}, "adamw, batch 1, checkpoints of every second layer"),
        ({"offload": True}, "adamw, batch 1, activations on the host"),
        ({"attention": "eager"}, "adamw, batch 1, eager attention"),
    ],
)
def test_a_plan_in_words(options, words):
    assert str(Plan(**options)) == words


def test_a_loss_and_inputs_of_ones_own_take_the_place_of_a_configurations(config):
    wide = {"input_ids": torch.zeros(2, 100, dtype=torch.long)}
    apart = simgpu.fit(config, 2, gpu="T4", inputs=wide, loss=lambda outputs, batch: outputs.logits.sum())
    assert apart.plan.length is None
    assert apart.peak < simgpu.fit(config, 2, gpu="T4", length=100).peak  # cross-entropy takes more than a sum


def test_what_a_model_in_bf16_has_already_is_no_technique(config):
    names = {row.applied[0] for row in simgpu.fit(config, 2, gpu="T4", length=64, dtype="bf16").techniques().alone}
    assert names and not {"bf16 weights", "bf16 autocast"} & names
