"""simgpu fit --serve --requests N --ranks T: a server whose model several GPUs share by tensor parallelism."""

import json

import pytest
import transformers
from torch import distributed as dist

import simgpu
from simgpu.command import main
from simgpu.report.owners import KV_CACHE
from tests.unit.simgpu.small_llama import LLAMA, written

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")

HIDDEN, INNER, HEAD, VOCABULARY, LAYERS = 256, 704, 32, 1024, 2
COMMON = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 1024}
EXPERTS = {"num_experts_per_tok": 2, "num_key_value_heads": 4}
LATENT = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "v_head_dim": 32, "qk_nope_head_dim": 32}


@pytest.fixture
def config(tmp_path):
    return written(tmp_path)


def served(config, ranks=None, requests=8, **options):
    options = {"dtype": "bf16", "length": 512, **options}
    return simgpu.fit(config, optimizer=None, gpu="H100", requests=requests, ranks=ranks, **options)


def blocked(*sizes):
    """Returns the bytes of tensors of bf16 in blocks of 512 bytes."""
    return sum(-(-2 * size // 512) * 512 for size in sizes)


@pytest.mark.parametrize(("gpus", "keys"), [(2, 1), (4, 1), (8, 1)])
def test_each_gpu_holds_its_part_of_the_weights(config, gpus, keys):
    """With four and eight GPUs a key head is on two and four of them."""
    attention = [HIDDEN * HIDDEN // gpus] * 2 + [HIDDEN * keys * HEAD] * 2
    layer = [*attention, *[HIDDEN * INNER // gpus] * 3, HIDDEN, HIDDEN]
    rope = 2 * 512  # inverse frequencies, and a copy of them
    expected = blocked(*layer * LAYERS, HIDDEN, *[VOCABULARY // gpus * HIDDEN] * 2) + rope
    assert served(config, gpus).serving.weights == expected


def test_the_vocabulary_is_padded(tmp_path):
    """1,000 entries are 1,024 with padding, so each of two GPUs has 512."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "vocab_size": 1000}))
    (tmp_path / "padded.json").write_text(json.dumps(LLAMA))
    assert served(str(path), 2).serving.weights == served(str(tmp_path / "padded.json"), 2).serving.weights
    assert served(str(path)).serving.weights < served(str(tmp_path / "padded.json")).serving.weights


def test_the_cache_is_divided_until_each_gpu_has_one_head(config):
    one, two, four = (served(config, gpus) for gpus in (None, 2, 4))
    assert one.serving.block_bytes == 2 * two.serving.block_bytes == 2 * four.serving.block_bytes
    assert one.parts[KV_CACHE] == 2 * two.parts[KV_CACHE] == 2 * four.parts[KV_CACHE]
    assert two.serving.tokens > 2 * one.serving.tokens
    assert [one.serving.gpus, two.serving.gpus] == [1, 2]
    assert "All GPUs need the same memory" in str(two) and "All GPUs" not in str(one)


def test_sums_and_gathered_logits_travel(config):
    """An all-reduce after the embedding and two per layer, and one gather of the logits."""
    found = served(config, 2, prefill_chunk=2048)
    ((_, sums, nbytes, _), (_, gathers, logits, _)) = sorted(found.report.traffic, reverse=True)[:2][::-1]
    assert (sums, gathers) in {(1 + 2 * LAYERS, 1), (1, 1 + 2 * LAYERS)}
    assert {nbytes, logits} == {(1 + 2 * LAYERS) * 2048 * HIDDEN * 2, 8 * VOCABULARY * 2}


def test_quantised_weights_are_divided_too(config):
    plain, small = served(config, 2), served(config, 2, weights="fp8")
    linear = LAYERS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * 64 + 3 * HIDDEN * INNER) // 2
    saved = plain.serving.weights - small.serving.weights
    assert saved == pytest.approx(linear, rel=0.05) and saved < linear


@pytest.mark.parametrize(
    "model",
    [
        transformers.Qwen3Config(**COMMON, intermediate_size=704, num_key_value_heads=2, head_dim=32),
        transformers.MixtralConfig(**COMMON, **EXPERTS, intermediate_size=512, num_local_experts=4),
        transformers.GptOssConfig(**COMMON, **EXPERTS, intermediate_size=256, num_local_experts=4, head_dim=32),
        transformers.DeepseekV3Config(
            **COMMON, **LATENT, moe_intermediate_size=128, n_routed_experts=8, n_group=2, topk_group=1
        ),
    ],
    ids=lambda one: one.model_type,
)
def test_other_models_are_divided(model):
    whole, half = (served(model, gpus, length=256).serving for gpus in (None, 2))
    assert whole.weights / 2 < half.weights < 0.62 * whole.weights
    latent = bool(getattr(model, "kv_lora_rank", None))
    assert half.block_bytes == whole.block_bytes // (1 if latent else 2)


def test_tied_weights_stay_one(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "tie_word_embeddings": True}))
    untied = tmp_path / "untied.json"
    untied.write_text(json.dumps(LLAMA))
    saved = served(str(untied), 2).serving.weights - served(str(path), 2).serving.weights
    assert saved == VOCABULARY * HIDDEN  # half of the table, in two bytes


def test_the_command(config, capsys):
    arguments = ["fit", config, "--serve", "--requests", "8", "--length", "512", "--dtype", "bf16", "--gpu", "H100"]
    assert main([*arguments, "--ranks", "2"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("KV cache, estimate: ") and "  0.9 of 81,079.25 MiB on each of 2 GPUs" in page
    assert f"  {2 * 2 * 32 * 2:,} B a token on each of 2 GPUs, 32 blocks a request" in page
    assert "8 requests × 512, 2 ranks of tensor parallelism), as rank 0 of 2, fits on a simulated H100" in page
    assert main([*arguments, "--ranks", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["serving"]["gpus"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", "3"], "3 GPUs cannot share 8 attention heads equally"),
        (["--ranks", "2", "--link", "pcie"], "link='pcie' is of training"),
        (["--ranks", "2", "--context-parallel", "2"], "context_parallel=2 is of training"),
    ],
)
def test_what_cannot_be_divided_gets_one_line(config, capsys, arguments, said):
    assert main(["fit", config, "--serve", "--requests", "8", *arguments]) == 2
    written = capsys.readouterr()
    assert said in written.err and written.err.count("\n") == 1 and written.out == ""


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (transformers.LlamaConfig(**{**LLAMA, "intermediate_size": 706}), "4 GPUs cannot share the 706 elements of"),
        (
            transformers.LlamaConfig(
                **{**LLAMA, "hidden_size": 384, "num_attention_heads": 12, "num_key_value_heads": 6}
            ),
            "4 GPUs can neither share 6 key heads",
        ),
        (transformers.GPT2Config(n_embd=64, n_head=4, n_layer=2, vocab_size=128), "does not know how GPUs share"),
        (transformers.Olmo2Config(**COMMON, intermediate_size=704), "needs all heads on each GPU"),
    ],
    ids=["columns", "heads", "names", "norms"],
)
def test_models_that_cannot_be_divided(model, said):
    with pytest.raises(ValueError, match=said):
        served(model, 4, length=64)
