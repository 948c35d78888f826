"""simgpu fit --dtype fp8: training with matmuls in 8-bit floats (tests/oracle/test_rules.py compares its events)."""

import pytest
import torch
import transformers
from torch import nn

import simgpu
from simgpu.command import main
from simgpu.fitting.float8 import Float8Linear, convert
from simgpu.fitting.plan import Plan
from simgpu.report.owners import PARAMETERS, STATES
from tests.unit.simgpu.four_layers import WEIGHTS, layers
from tests.unit.simgpu.small_llama import LLAMA


def fitted(dtype="fp8", gpu="H100", **options):
    return simgpu.fit(layers, 256, inputs=lambda size: torch.zeros(size, 512), gpu=gpu, dtype=dtype, **options)


def test_the_head_and_odd_sizes_stay():
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**LLAMA))
        convert(model, "meta")
        odd = convert(nn.Sequential(nn.Linear(64, 40), nn.Linear(64, 48)), "meta")
    kinds = {name: type(one) for name, one in model.named_modules() if isinstance(one, nn.Linear)}
    assert kinds.pop("lm_head") is nn.Linear
    assert set(kinds.values()) == {Float8Linear} and len(kinds) == 2 * 7
    assert [type(one) for one in odd] == [nn.Linear, Float8Linear]


def test_weights_and_states_stay_in_sixteen_bits_and_with_autocast_in_thirty_two():
    half, full = fitted(), fitted(autocast="bf16")
    assert (half.parts[PARAMETERS], half.parts[STATES]) == (WEIGHTS // 2, WEIGHTS)
    assert (full.parts[PARAMETERS], full.parts[STATES]) == (WEIGHTS, 2 * WEIGHTS)
    assert "Matmuls in fp8 are those of torchao's Float8Linear" in str(half)


def test_it_saves_what_bf16_saves_and_casts_while_it_computes():
    """Autograd saves input and weight in bf16; a cast needs the tensor in float32, twice for a moment."""
    eight, sixteen = (fitted(dtype, optimizer="sgd") for dtype in ("fp8", "bf16"))
    assert eight.parts[PARAMETERS] == sixteen.parts[PARAMETERS]
    assert 0 < eight.peak - sixteen.peak < 4 * 4 * 512 * 512
    assert eight.time is not None and eight.report.unmodeled == ""


def test_a_rank_of_many_computes_in_eight_bits_too():
    whole, sharded = fitted(), fitted(ranks=8)
    assert sharded.parts[PARAMETERS] < whole.parts[PARAMETERS] / 7
    assert fitted(ranks=8, parallel="ddp").report.completed


def test_gpus_without_it_are_named(capsys, tmp_path):
    assert set(fitted().every_gpu()) == {"RTX 4090", "RTX 5090", "L4", "L40S", "H100", "H200", "B200"}
    with pytest.raises(
        ValueError, match=r"compute capability 8\.9 or more, and A100-80GB has 8\.0; these have it: RTX"
    ):
        fitted(gpu="A100-80GB").report.peak  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch", "1", "--length", "120"], "a multiple of 16 tokens, and batch 1 × 120 is 120"),
        (["--length", "128", "--largest", "length"], "so not every length can be tried"),
        (["--length", "128", "--lora", "8"], "fit does not combine matmuls in fp8 with LoRA"),
        (["--length", "128", "--serve"], "--weights fp8"),
    ],
)
def test_what_cannot_be_gets_one_line(arguments, said, tmp_path, capsys):
    path = tmp_path / "config.json"
    transformers.LlamaConfig(**LLAMA).to_json_file(path)
    assert main(["fit", str(path), "--dtype", "fp8", "--gpu", "H100", *arguments]) == 2
    written = capsys.readouterr()
    assert said in written.err and written.err.count("\n") == 1


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(ValueError, match="linear layers with sizes that are multiples of 16"):
        simgpu.fit(lambda: nn.Linear(10, 10), 16, inputs=torch.zeros(16, 10), gpu="H100", dtype="fp8")


def test_a_plan_in_words():
    assert str(Plan(dtype="fp8", batch=8, length=2048)) == "adamw, fp8, batch 8 × 2048"
