"""simgpu fit --expert-parallel: ranks that share the experts of a model."""

import json
import math

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist
from torch import nn

import simgpu
from simgpu.command import main
from simgpu.fitting.experts import received
from simgpu.fitting.plan import Plan
from simgpu.report.owners import ACTIVATIONS, PARAMETERS, STATES

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")

COMMON = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 1024}
SHARED = {"moe_intermediate_size": 128, "num_experts_per_tok": 4}
LATENT = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "v_head_dim": 32, "qk_nope_head_dim": 32}
MODELS = {
    "Mixtral": {"intermediate_size": 512, "num_key_value_heads": 2, "num_local_experts": 8},
    "Qwen2Moe": {**SHARED, "num_experts": 16, "num_key_value_heads": 2, "shared_expert_intermediate_size": 256},
    "Qwen3Moe": {**SHARED, "num_experts": 16, "num_key_value_heads": 2},
    "DeepseekV2": {**SHARED, **LATENT, "n_routed_experts": 16},
    "DeepseekV3": {
        **SHARED,
        **LATENT,
        "n_routed_experts": 64,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 1,
    },
    "GptOss": {"intermediate_size": 256, "num_key_value_heads": 2, "head_dim": 32, "num_local_experts": 8},
}


def config_of(name):
    return getattr(transformers, f"{name}Config")(**COMMON, **MODELS[name])


def fitted(name="Mixtral", **options):
    return simgpu.fit(config_of(name), 2, gpu="H100", length=1024, dtype="bf16", **options)


def weights(name):
    """Returns the bytes of the experts' weights and of all others, in bf16."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config_of(name), dtype=torch.bfloat16)
    experts = sum(one.nbytes for key, one in model.named_parameters() if ".experts." in key and "shared" not in key)
    return experts, sum(one.nbytes for one in model.parameters()) - experts


@pytest.mark.parametrize("name", MODELS)
def test_a_rank_holds_its_part_of_the_experts(name):
    """With DDP the other weights are whole on each rank."""
    experts, others = weights(name)
    found = fitted(name, ranks=4, parallel="ddp", expert_parallel=4)
    whole = fitted(name, ranks=4, parallel="ddp")
    assert found.parts[PARAMETERS] == pytest.approx(experts / 4 + others, rel=0.02)
    assert whole.parts[PARAMETERS] - found.parts[PARAMETERS] == pytest.approx(experts * 3 / 4, rel=0.02)
    assert whole.parts[STATES] - found.parts[STATES] == pytest.approx(2 * experts * 3 / 4, rel=0.05)  # blocks


@pytest.mark.parametrize("shared", [2, 4])
def test_fsdp2_shards_what_the_ranks_do_not_share(shared):
    """Whether experts are divided or sharded, a rank of four holds a quarter of all weights and states."""
    experts, others = weights("Mixtral")
    found = fitted(ranks=4, expert_parallel=shared)
    assert found.parts[PARAMETERS] == pytest.approx((experts + others) / 4, rel=0.02)
    assert found.parts[STATES] == pytest.approx(2 * (experts + others) / 4, rel=0.02)
    assert found.peak * 4 > fitted().parts[PARAMETERS]


def test_each_token_goes_to_its_experts_and_back():
    """Forward and backward, two layers, two steps: a row of 256 elements in bf16 for each of a token's two experts."""
    found = fitted(ranks=4, expert_parallel=4)
    rows = 2 * 1024 * 2
    ((_, times, nbytes, sent),) = (one for one in found.report.traffic if one[0] == "all_to_all")
    assert times == 2 * 2 * 2 * 2 and nbytes == times * rows * 256 * 2
    assert sent == nbytes * 3 // 4
    assert "Experts: all-to-all of one copy of a token per expert" in str(found) and found.speed is None


def test_the_fullest_rank_keeps_more():
    even, fuller, all_of_them = (fitted(ranks=4, expert_parallel=4, imbalance=one) for one in (1.0, 1.5, 4.0))
    assert even.peak == fitted(ranks=4, expert_parallel=4).peak
    assert even.parts[ACTIVATIONS] < fuller.parts[ACTIVATIONS] < all_of_them.parts[ACTIVATIONS]
    rows, layers_kept = 2 * 1024 * 2, 2 * (256 + 2 * 512 + 512) * 2
    assert all_of_them.parts[ACTIVATIONS] - even.parts[ACTIVATIONS] > 3 * rows * layers_kept * 0.8


@given(st.integers(0, 10_000), st.integers(1, 64), st.floats(1, 64))
def test_what_a_rank_receives(rows, parts, imbalance):
    found = received(rows, parts, imbalance)
    assert len(found) == parts and max(found) - min(found) <= 1
    assert sum(found) == min(math.ceil(rows * imbalance), rows * parts)
    assert sum(received(rows, parts, 1)) == rows


def test_with_checkpoints_and_shared_sequences():
    plain = fitted(ranks=4, expert_parallel=4)
    assert fitted(ranks=4, expert_parallel=4, checkpoint=True).parts[ACTIVATIONS] < plain.parts[ACTIVATIONS]
    assert fitted(ranks=4, expert_parallel=4, context_parallel=2).parts[ACTIVATIONS] < plain.parts[ACTIVATIONS]


def test_the_command(tmp_path, capsys):
    path = tmp_path / "config.json"
    config = config_of("Mixtral")
    config.architectures = ["MixtralForCausalLM"]
    config.to_json_file(path)
    arguments = ["fit", str(path), "--dtype", "bf16", "--length", "1024", "--gpu", "H100", "--expert-parallel", "4"]
    assert main([*arguments, "--imbalance", "1.5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rank"] == [0, 4] and document["plan"]["imbalance"] == 1.5
    assert "4 ranks of FSDP2, expert parallel 4, imbalance 1.5" in document["what"]
    assert main([*arguments[:-1], "3"]) == 2
    assert "3 ranks cannot share 8 experts equally" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"expert_parallel": 2}, r"expert_parallel=2 of how many ranks\? Say ranks= too"),
        ({"ranks": 4, "expert_parallel": 3}, "expert_parallel=3 does not divide ranks=4"),
        ({"ranks": 4, "expert_parallel": 2, "parallel": "ddp"}, "expert_parallel=4, not 2"),
        ({"ranks": 4, "expert_parallel": 4, "train": None}, "expert parallelism is for training without LoRA"),
        ({"ranks": 4, "expert_parallel": 4, "lora": 8}, "expert parallelism is for training without LoRA"),
        ({"ranks": 4, "imbalance": 2.0}, "say expert_parallel= too"),
        ({"ranks": 4, "expert_parallel": 4, "imbalance": 5.0}, r"1 \(even\) to 4 \(all tokens to one of 4 ranks\)"),
        ({"ranks": 4, "expert_parallel": 4, "imbalance": 0.5}, "not 0.5"),
    ],
)
def test_plans_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        Plan(**options)


def test_a_model_without_experts_shares_none():
    with pytest.raises(ValueError, match="needs a model with experts"):
        inputs = torch.zeros(16, 16)
        simgpu.fit(nn.Linear(16, 16), 16, inputs=inputs, gpu="H100", ranks=2, expert_parallel=2)
