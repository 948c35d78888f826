"""generate() on ten decoders with all values: greedily, sampled, by beams; and the KV cache to the byte."""

import copy

import pytest
import torch

import simgpu

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
FEED = {"intermediate_size": 64}
HALF = {"num_key_value_heads": 2}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
DECODERS = {
    "Llama": FEED | HALF,
    "Mistral": FEED | HALF,
    "Qwen2": FEED | HALF,
    "Gemma": FEED | HALF | {"head_dim": 8},
    "Phi": FEED,
    "StableLm": FEED | HALF,
    "GPTNeoX": FEED,
    "GPT2": {},
    "Bloom": {},
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
}
WAYS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 10},
    "8 beams": {"num_beams": 8},
}
NEW = 3
SLIDING = {"Mistral"}  # each layer's cache keeps the width of its window, one number, on the GPU


def model_of(name):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **DECODERS[name], **TOKENS)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("name", DECODERS)
def test_tokens_are_the_cpu_s_in_every_way(name):
    model = model_of(name)
    ids = torch.randint(3, 100, (2, 7))
    ids[0, :2] = 0

    def run(device, how):
        moved, given = copy.deepcopy(model).to(device), ids.to(device)
        torch.manual_seed(7)
        mask = (ids != 0).long().to(device)
        return moved.generate(given, attention_mask=mask, max_new_tokens=NEW, **WAYS[how]).tolist()

    with simgpu.simulated_gpu("A100-80GB", values=True):
        found = {how: run("cuda", how) for how in WAYS}
    assert found == {how: run("cpu", how) for how in WAYS}


@pytest.mark.parametrize("values", [False, True], ids=["without values", "with values"])
@pytest.mark.parametrize("name", DECODERS)
def test_the_kv_cache_to_the_byte(name, values):
    """What a prompt leaves: keys and values of each layer, in blocks of 512 B, as many as the heads that keep them."""
    rows, length = 3, 11
    model = model_of(name)
    heads = DECODERS[name].get("num_key_value_heads", SIZES["num_attention_heads"])
    one = rows * heads * length * (SIZES["hidden_size"] // SIZES["num_attention_heads"]) * 4
    kept = SIZES["num_hidden_layers"] * (2 * -(-one // 512) * 512 + 512 * (name in SLIDING))
    with simgpu.simulated_gpu("A100-80GB", values=values):
        moved, ids = model.to("cuda"), torch.full((rows, length), 5, device="cuda")
        with torch.no_grad():
            moved(ids, use_cache=True)
            before = torch.cuda.memory_allocated()
            cache = moved(ids, use_cache=True).past_key_values
        assert torch.cuda.memory_allocated() - before == kept
        del cache
        assert torch.cuda.memory_allocated() == before


def test_without_values_it_ends_at_its_most_tokens():
    """No token is known, and none stops it: the number of tokens does, which is."""
    model = model_of("Llama")

    def run():
        ids = torch.full((2, 7), 5, device="cuda")
        assert model.to("cuda").generate(ids, max_new_tokens=NEW, do_sample=False).shape == (2, 7 + NEW)

    report = simgpu.run(run, gpu="T4")
    assert report.ended == "" and report.completed
