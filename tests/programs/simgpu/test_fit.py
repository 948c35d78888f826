"""simgpu fit: whether a plan fits on a GPU, and what would make it."""

import io
import json
import re
import signal
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import simgpu
from simgpu.command import main
from simgpu.fitting import fit as fit_module
from simgpu.fitting import measuring
from simgpu.fitting.optimizers import OPTIMIZERS
from simgpu.fitting.plan import Plan
from simgpu.fitting.progress import Progress
from simgpu.fitting.search import Search
from simgpu.fitting.subject import of_config, subject_of
from simgpu.fitting.techniques import candidates, within
from simgpu.gpus.specs import SPECS
from simgpu.report.owners import ACTIVATIONS, PARAMETERS, STATES
from simgpu.report.sizes import parse, size
from tests.pinned import of_pinned_torch
from tests.unit.simgpu.four_layers import WEIGHTS, layers, steps
from tests.unit.simgpu.small_llama import LLAMA, written

MIB = 2**20


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
    return written(tmp_path)


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
    found = simgpu.fit(layers, 20_000, inputs=lambda n: torch.zeros(n, 512), gpu="T4", memory="160 MiB")
    assert (found.fits, found.status, found.largest("batch")) == (False, 1, 0)
    page = str(found)
    assert page.startswith("layers (adamw, batch 20000) does not fit on a simulated T4: ")
    assert f"It would use up to {size(found.needs)}, as nvidia-smi shows it." in page
    assert f"The smallest capacity found to fit is {size(found.report.smallest)}." in page
    assert "Findings" in page


def test_what_is_missing_in_all_may_be_too_little_to_tell():
    like = {"inputs": lambda batch: torch.zeros(batch, 512), "gpu": "T4"}
    smallest = simgpu.fit(layers, 256, **like).report.smallest
    short = simgpu.fit(layers, 256, memory=smallest - 10 * MIB, **like)
    assert (short.report.completed, short.status) == (False, 3)
    assert "too close to call: 10 MiB are missing in all" in str(short)


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


def test_checkpointing_equals_that_of_transformers_which_keeps_no_cache():
    """Checkpoints of a plain wrapper would fill the cache of keys and values, which transformers switches off."""
    config = transformers.LlamaConfig(**LLAMA)
    fitted = simgpu.fit(config, 4, length=256, gpu="A100-80GB", checkpoint=True)
    assert config.use_cache is True
    with simgpu.simulated_gpu("A100-80GB"), torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**LLAMA)).train()
        model.activation_checkpointing_enable()
        tokens, labels = torch.zeros(2, 4, 256, dtype=torch.long).unbind()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(input_ids=tokens, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        peak = torch.cuda.max_memory_allocated()
    assert fitted.peak == peak
    assert fitted.changed(checkpoint=False).peak > peak


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
    assert page.startswith("The smallest on which it fits: RTX 3060\n  RTX 3060 ")  # the least memory of all
    assert "\nsmall-llama (adamw, bf16, batch 2 × 64, LoRA 4, checkpoints) fits on a simulated RTX 3060, with " in page
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
    found = re.match(r"The largest batch that fits: (\d+) \(on a simulated T4; (\d+) to (\d+) are too close", page)
    assert found is not None
    sure, close, largest = map(int, found.groups())
    assert f"\n{name} (inference, batch {sure}) fits on a simulated T4, with " in page
    assert close == sure + 1 and 4 * inputs * (largest - sure) == pytest.approx(100 * MIB, rel=0.25)
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


def in_the_hub_cache(monkeypatch, tmp_path, name, config):
    """As huggingface_hub stores a download: a snapshot by its commit, and the commit of "main"."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc" / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["someone/small-llama", "small-llama"])
def test_a_name_of_the_hub_is_found_in_its_cache(name, libraries, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    in_the_hub_cache(monkeypatch, tmp_path, name, LLAMA)
    subject = subject_of(name)
    assert (subject.name, subject.longest) == ("small-llama", 512)


def test_a_model_of_timm_is_found_in_the_hubs_cache(libraries, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    in_the_hub_cache(monkeypatch, tmp_path, "timm/tiny_net.in1k", {"architecture": "tiny_net"})
    subject = subject_of("timm/tiny_net.in1k")
    assert subject.name == "tiny_net.in1k" and subject.batch(2, None)[""].shape == (2, 3, 8, 8)


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


@pytest.mark.parametrize("budget", ["10 MiB", "240 MiB", "2 GiB"])
def test_a_budget_alone_needs_fewer_runs(budget):
    """As it is, with techniques, and not at all. What it says fits was run, and does."""
    found = simgpu.fit(layers, 4096, inputs=lambda size: torch.zeros(size, 512), gpu="T4")
    before, best = within(found, parse(budget), rows := [])
    assert before == rows[0] and len(rows) <= 1 + len(candidates(found.plan))
    assert (best is None) == (budget == "10 MiB")
    if best is not None:
        assert best.fits and found.of(best.plan, memory=parse(budget)).report.completed
        assert (best == before) == (budget == "2 GiB")


# --- the verdict -------------------------------------------------------------------------------------------


def test_a_plan_near_the_limit_is_too_close_to_call(layered):
    """Within the 100 MiB by which a real GPU's context may differ; unless the cache makes room for more than these."""
    need = layered.nvidia_smi
    near = simgpu.fit(layers, 256, inputs=lambda size: torch.zeros(size, 512), gpu="T4", memory=need + 99 * MIB)
    sure = simgpu.fit(layers, 256, inputs=lambda size: torch.zeros(size, 512), gpu="T4", memory=need + 101 * MIB)
    assert (near.status, sure.status) == (3, 0)
    assert "too close to call" in str(near) and "fits on a simulated T4, with 101 MiB (±100) to spare" in str(sure)


@of_pinned_torch
def test_a_cache_that_makes_room_leaves_a_margin(config):
    """A GPU with 2 GiB would show 63 MiB less than that, but one with 100 MiB less has room for it, too."""
    tight = simgpu.fit(config, 360, gpu="A100-80GB", memory="2 GiB", length=64)
    assert 0 < tight.total_memory - tight.nvidia_smi < 100 * MIB
    assert tight.status == 0 and tight.report.smallest <= tight.total_memory - 100 * MIB
    assert f"the smallest capacity found to fit is {tight.report.smallest / MIB:,.0f} MiB" in str(tight)
    assert tight.on("A100-80GB", tight.report.smallest).report.completed


def test_the_largest_batch_with_a_margin(capsys, config):
    arguments = ["fit", config, "--length", "64", "--gpu", "T4", "--memory", "1 GiB", "--largest", "batch"]
    assert main(arguments) == 0
    answer = capsys.readouterr().out.splitlines()[0]
    sure, last, after = map(
        int,
        re.search(
            r"fits: (\d+) \(on a simulated T4; \d+ to (\d+) are too close to call, (\d+) runs out", answer
        ).groups(),
    )
    assert after == last + 1
    found = simgpu.fit(config, length=64, gpu="T4", memory="1 GiB")
    reports = [found.changed(batch=batch).report for batch in (sure, sure + 1, last, after)]
    assert [report.outcome for report in reports[:3]] == ["fits", "undecided", "undecided"]
    assert [report.completed for report in reports] == [True, True, True, False]


def test_the_answer_comes_first_and_the_page_is_of_that_plan(capsys, config):
    arguments = ["fit", config, "--length", "64", "--batch", "64", "--gpu", "T4", "--budget", "420 MiB"]
    assert main(arguments) in (0, 3)
    first, _, page, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("The fastest that fits into 420.00 MiB: ") and "of 420 MiB" not in first
    assert (page.startswith("small-llama (") and "batch 64 × 64" not in page.split(")")[0]) or "adamw-8bit" in page
    assert main(["fit", config, "--length", "64", "--memory", "200 MiB", "--gpu", "T4", "--largest", "batch"]) in (1, 3)
    assert capsys.readouterr().out.startswith("No batch ")


# --- while it runs -------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_rewrites_one_line_of_a_terminal(layered):
    progress = Progress(Terminal())
    simgpu.fit(layers, 8, inputs=lambda size: torch.zeros(size, 512), gpu="T4", tell=progress).changed(batch=16)
    progress.clear()
    said = progress.stream.getvalue().split("\r\x1b[K")
    assert "\n" not in progress.stream.getvalue() and said[-1] == ""
    assert "run 1, adamw, batch 8 on a simulated T4: makes the model" in said[1]
    assert "run 2, adamw, batch 16 on a simulated T4: step 2 of 2; adamw, batch 8: " in said[-2]


def test_progress_elsewhere_is_a_line_now_and_then(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("simgpu.fitting.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = Progress(io.StringIO())
    for seconds in (3, 9, 11, 12, 20, 22):
        now[0] = seconds
        progress.stage(f"at {seconds}")
    progress.clear()
    assert progress.stream.getvalue() == "simgpu fit: 11 s, at 11\nsimgpu fit: 22 s, at 22\n"


@pytest.mark.parametrize(
    ("asked", "runs", "said"),
    [
        ([], 0, "Interrupted before the first plan was run"),
        (["--largest", "batch"], 3, "Interrupted. So far: a batch of "),
        (["--every-gpu", "--batch", "30000"], 1, "Interrupted. So far:"),
        (["--budget", "300 MiB", "--batch", "64"], 3, "Interrupted. What was tried so far:"),
        (["--techniques"], 3, "Interrupted. What was tried so far:"),
    ],
)
def test_ctrl_c_gives_what_is_known_so_far(config, capsys, monkeypatch, asked, runs, said):
    """It comes while a plan runs, after some that have."""
    left, real = [runs], fit_module.measure

    def measure(*args):
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)
        left[0] -= 1
        return real(*args)

    monkeypatch.setattr(fit_module, "measure", measure)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["fit", config, "--length", "64", "--gpu", "T4", *asked]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    written = capsys.readouterr()
    assert said in written.out and "Traceback" not in written.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fti", "config.json"], "did you mean fit?"),
        (["run", "--value", "train.py"], "did you mean --values?"),
        (["fit", "config.json", "--attention", "spda"], "did you mean sdpa?"),
        (["fit", "config.json", "--batch", "many"], "argument --batch: invalid int value: 'many'"),
        (["fit", "--gpu", "T4"], "the following arguments are required: model"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_what_is_no_command_or_option_gets_one_line(capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    written = capsys.readouterr().err
    assert ended.value.code == 2 and said in written and written.count("\n") == 1 and "--help lists" in written


def test_the_help_names_every_gpu_and_every_optimizer(capsys):
    for command in ("fit", "run"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        text = "".join(capsys.readouterr().out.split())
        assert f"GPUs:{','.join(SPECS)}.".replace(" ", "") in text and "3undecided,130afterCtrl-C" in text
        assert command == "run" or f"{','.join(OPTIMIZERS)},ornone" in text


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-model"], "no file and no model 'no-such-model'"),
        (["missing.json"], "'missing.json' cannot be read"),
        (["text.json"], "'text.json' is broken JSON: Expecting ',' delimiter at line 2, column 4"),
        (["list.json"], "'list.json' holds a JSON list; wanted an object with a model_type"),
        (["bytes.json"], "'bytes.json' is not JSON in UTF-8"),
        (["without.json"], "'without.json' has no model_type"),
        (["unknown.json"], "knows no model_type 'nothing-like-this'"),
        (["lama.json"], "knows no model_type 'lama'; did you mean 'llama'"),
        (["own.json"], "its model is code of its own (auto_map)"),
        (["refused.json"], "transformers refuses 'refused.json': "),
        (["empty"], "the folder 'empty' has no config.json"),
        (["above"], "the folder 'above' has no config.json; did you mean 'above/here'?"),
        (["adapter"], "it holds an adapter; wanted the folder of the base model"),
        (["org/some-model"], "get its configuration with: hf download org/some-model config.json"),
        (["./missing/model"], "no file and no model './missing/model'"),
        (["CONFIG", "--dtype", "fp8", "--gpu", "T4"], "compute capability 8.9 or more, and T4 has 7.5"),
        (["CONFIG", "--dtype", "int8"], "Weights that are trained have 16 or 32 bits"),
        (["CONFIG", "--dtype", "nf4"], "--qlora RANK"),
        (["CONFIG", "--memory", "12"], "'12' is 12 B, as it has no unit; write '12GiB'"),
        (["CONFIG", "--budget", "12"], "'12' is 12 B, as it has no unit; write '12GiB'"),
        (["CONFIG", "--gpu", "GTX 1080"], "--gpu A100-80GB --memory 12GiB"),
        (["CONFIG", "--batch", "0"], "batch is a whole number of 1 or more, not 0"),
        (["CONFIG", "--length", "-3"], "length is a whole number of 1 or more, not -3"),
        (["CONFIG", "--dtype", "fp7"], "dtype is one of fp32"),
        (["CONFIG", "--train", "adamm"], "train is one of adamw"),
        (["CONFIG", "--gpu", "RTX 4O90"], "did you mean 'RTX 4090'"),
        (["CONFIG", "--budget", "many"], "'many' is not a size"),
        (["CONFIG", "--lora", "0"], "lora is a whole number of 1 or more, not 0"),
        (["CONFIG", "--length", "513"], "small-llama takes 512 tokens at most, not 513"),
        (["CONFIG", "--serve", "--techniques"], "the techniques are those of training"),
        (["CONFIG", "--memory", "1 MiB"], "does not hold the CUDA context"),
        (["resnet0"], "no file and no model 'resnet0'"),
        (["tiny_nets"], "searched timm (which has tiny_net), torchvision and this"),
        (["https://hub.example/org/some-model/tree/main"], "hf download org/some-model config.json"),
        (["CONFIG", "--train", "adamw8bit"], "not 'adamw8bit'; did you mean 'adamw-8bit'?"),
        (["tiny_net", "--length", "7"], "tiny_net has no length"),
        (["tiny_net", "--largest", "length"], "tiny_net has no length"),
    ],
)
def test_bad_input_gets_one_line(config, libraries, tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    files = {
        "text.json": "[1,\n 2 3",
        "list.json": "[1, 2]",
        "bytes.json": b"\xff\xfe\x00",
        "without.json": '{"hidden_size": 64}',
        "unknown.json": '{"model_type": "nothing-like-this"}',
        "lama.json": '{"model_type": "lama"}',
        "own.json": '{"model_type": "chatty", "auto_map": {"AutoModel": "modeling.Chatty"}}',
        "refused.json": '{"model_type": "llama", "hidden_size": "many"}',
        "empty/readme.md": "",
        "above/here/config.json": "{}",
        "adapter/adapter_config.json": "{}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
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
