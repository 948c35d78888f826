"""The serving engine: its logits are those of the model alone, and no block is lost or used twice."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from helpers import serving
from labkit import simulated_gpu

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
VOCABULARY = 100


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(23)
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=VOCABULARY)).eval()


def tokens(count, first=0):
    return [(first + 7 * n) % VOCABULARY for n in range(count)]


@torch.no_grad()
def alone(model, prompt):
    return model(torch.tensor([prompt])).logits[0, -1]


@pytest.mark.parametrize("chunk", [None, 16, 23])
@pytest.mark.parametrize("sharing", [False, True])
def test_the_logits_are_those_of_the_model_without_a_cache(tiny, chunk, sharing):
    engine = serving.Engine(tiny, 40, sharing)
    prompts = [tokens(40) + tokens(more, first=1 + more) for more in (7, 50, 21)]
    requests = [engine.admit(prompt) for prompt in prompts]
    for request, prompt in zip(requests, prompts, strict=True):
        assert torch.allclose(engine.prefill(request, chunk)[0], alone(tiny, prompt), atol=1e-5)
    assert [request.table[:2] == requests[0].table[:2] for request in requests] == [True, sharing, sharing]
    for step in (1, 2):  # of three requests with different lengths
        logits = engine.decode(requests, [step] * 3)
        for number in range(3):
            prompts[number].append(step)
            assert torch.allclose(logits[number], alone(tiny, prompts[number]), atol=1e-5)


def test_all_logits_or_the_last(tiny):
    engine = serving.Engine(tiny, 10)
    last, every = (engine.prefill(engine.admit(tokens(20)), last_only=way) for way in (True, False))
    assert torch.allclose(last, every, atol=1e-6)


def test_only_full_blocks_are_shared_and_never_the_last_token(tiny):
    engine = serving.Engine(tiny, 40, sharing=True)
    requests = [engine.admit(tokens(count)) for count in (64, 64, 50, 40)]
    assert [request.cached for request in requests] == [0, 48, 48, 32]
    assert engine.admit([99, *tokens(63)]).cached == 0  # one different token at the start


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2), st.booleans()), max_size=12), st.booleans())
def test_no_block_is_lost_or_used_twice(tiny, asked, sharing):
    engine, requests = serving.Engine(tiny, 12, sharing), []
    for count, first, leaves in asked:
        try:
            requests.append(engine.admit(tokens(count, first)))
        except serving.OutOfBlocks:
            leaves = True
        if leaves and requests:
            engine.release(requests.pop(0))
        used = {block for request in requests for block in request.table}
        assert sorted([*used, *engine.free]) == list(range(12))
        assert set(engine.known.values()) == set(engine.held) <= used
    for request in requests:
        engine.release(request)
    assert sorted(engine.free) == list(range(12)) and not any(engine.references) and not engine.known


def test_a_full_pool_takes_nothing_from_a_request_that_waits(tiny):
    engine = serving.Engine(tiny, 4)
    engine.admit(tokens(40))
    with pytest.raises(serving.OutOfBlocks, match="20 tokens need 2 blocks"):
        engine.admit(tokens(20))
    assert len(engine.free) == 1


def test_the_pool_has_the_bytes_of_its_tokens(tiny):
    assert serving.Engine(tiny, 5).pool.nbytes == 5 * 16 * serving.token_bytes(tiny.config, element=4)
    assert serving.token_bytes(LlamaConfig(num_hidden_layers=40, hidden_size=5120, num_attention_heads=40)) == 819_200


def test_a_continuous_batch_needs_fewer_passes():
    assert [serving.passes([1, 9, 1, 9], 2, continuous) for continuous in (False, True)] == [18, 11]
    assert serving.passes([], 2, continuous=True) == 0
    with pytest.raises(ValueError, match="given: 0 seats"):
        serving.passes([3], 0, continuous=True)


def test_a_card_and_its_context():
    total, context = serving.card_sizes("RTX 3090")
    with simulated_gpu("RTX 3090"):
        assert total == torch.cuda.get_device_properties(0).total_memory
    assert context == 317 * 2**20


def test_a_layer_peaks_with_three_tensors_of_its_mlp_and_three_hidden_states():
    config = LlamaConfig(hidden_size=1024, intermediate_size=4096, num_attention_heads=8, num_hidden_layers=9)
    less, more = (serving.layer_peak(config, "RTX 3090", tokens) for tokens in (4096, 8192))
    assert (more - less) / 4096 == pytest.approx(2 * (3 * 4096 + 3 * 1024), rel=0.02)  # bytes per token


def test_the_rates_in_words():
    with simulated_gpu("T4"):
        figure = serving.plot_rates({"512 tokens each": {1: 10.0, 8: 60.0}})
    assert "512 tokens each end at 8 requests" in figure.description
