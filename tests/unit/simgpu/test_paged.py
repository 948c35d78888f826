"""Blocks of a paged KV cache: bytes of a block, blocks of a request, and how many fit into a budget."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu.fitting.paged import Capacity, KVLayout, kv_itemsize, kv_layout
from simgpu.fitting.plan import Plan

GROUPED = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
ALTERNATING = ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GROUPED, KVLayout(2 * 8 * 128, 32)),
        ({**GROUPED, "num_key_value_heads": None}, KVLayout(2 * 32 * 128, 32)),
        ({**GROUPED, "head_dim": 64}, KVLayout(2 * 8 * 64, 32)),
        ({**GROUPED, "sliding_window": 4096}, KVLayout(2 * 8 * 128, 0, 32, 4096)),
        ({**GROUPED, "sliding_window": 4096, "use_sliding_window": False}, KVLayout(2 * 8 * 128, 32)),
        ({**GROUPED, "sliding_window": 128, "layer_types": ALTERNATING * 16}, KVLayout(2 * 8 * 128, 16, 16, 128)),
        ({**GROUPED, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, KVLayout(576, 32, latent=True)),
    ],
)
def test_the_layout_follows_from_the_configuration(config, expected):
    assert kv_layout(SimpleNamespace(**config)) == expected


LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}


@pytest.mark.parametrize(
    ("config", "gpus", "elements"),
    [
        (GROUPED, 1, 2 * 8 * 128),
        (GROUPED, 2, 2 * 4 * 128),
        (GROUPED, 8, 2 * 128),
        (GROUPED, 32, 2 * 128),  # each head is on four GPUs
        ({**GROUPED, **LATENT}, 8, 512 + 64),
        ({**GROUPED, **LATENT}, 1, 512 + 64),
    ],
)
def test_gpus_share_key_heads_and_copy_them_if_there_are_too_few(config, gpus, elements):
    assert kv_layout(SimpleNamespace(**config), gpus) == replace(
        kv_layout(SimpleNamespace(**config)), elements=elements
    )


@pytest.mark.parametrize("gpus", [3, 12])
def test_key_heads_that_cannot_be_shared(gpus):
    with pytest.raises(ValueError, match=f"{gpus} GPUs can neither share 8 key heads equally"):
        kv_layout(SimpleNamespace(**GROUPED), gpus)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**GROUPED, "layer_types": ["linear_attention", "full_attention"]}, "the model has linear_attention too"),
        ({**GROUPED, "num_kv_shared_layers": 10}, "num_kv_shared_layers=10 are not modelled"),
        ({"hidden_size": 64}, "names no attention heads and layers"),
    ],
)
def test_other_caches_are_refused(config, said):
    with pytest.raises(ValueError, match=said):
        kv_layout(SimpleNamespace(**config))


def test_a_request_of_full_attention_rounds_up_to_blocks():
    layout = KVLayout(2048, 32)
    assert (layout.group, layout.groups) == (32, 1)
    assert [layout.request_blocks(length, 16, 2048) for length in (1, 16, 17, 4096)] == [1, 1, 2, 256]
    assert layout.block_bytes(16, 2) == 16 * layout.token_bytes(2) == 16 * 32 * 2048 * 2


def test_sliding_layers_keep_the_window_and_the_chunk():
    """One block more, because a window may begin inside a block; and never more than the request has."""
    layout = KVLayout(1024, 0, 24, 128)
    assert layout.request_blocks(100_000, 16, 2048) == -(-(127 + 2048) // 16) + 1
    assert layout.request_blocks(64, 16, 2048) == 4 + 1


@pytest.mark.parametrize(
    ("full", "sliding", "group", "groups"), [(12, 12, 12, 2), (10, 20, 10, 3), (13, 12, 13, 2), (5, 25, 5, 6)]
)
def test_layers_of_two_kinds_share_tables_of_blocks(full, sliding, group, groups):
    layout = KVLayout(1024, full, sliding, 128)
    assert (layout.group, layout.groups) == (group, groups)


def test_the_dtype_of_the_cache():
    assert [kv_itemsize(None, torch.bfloat16), kv_itemsize("fp8", torch.bfloat16)] == [2, 1]
    assert kv_itemsize("fp32", torch.bfloat16) == 4


LAYOUTS = st.builds(KVLayout, st.integers(64, 4096), st.integers(1, 40), st.integers(0, 40), st.integers(16, 8192))
CAPACITIES = st.builds(
    Capacity,
    layout=LAYOUTS,
    budget=st.integers(0, 2**38),
    context=st.integers(0, 2**30),
    weights=st.integers(0, 2**36),
    activations=st.integers(0, 2**33),
    asked=st.integers(1, 512),
    length=st.integers(1, 131_072),
    block_size=st.sampled_from([1, 8, 16, 32, 128]),
    chunk=st.sampled_from([512, 2048, 8192]),
    itemsize=st.sampled_from([1, 2, 4]),
)


@given(CAPACITIES, st.integers(0, 2**34))
def test_a_larger_budget_never_has_fewer_blocks(capacity, more):
    larger = replace(capacity, budget=capacity.budget + more)
    assert larger.blocks >= capacity.blocks and larger.requests >= capacity.requests


@given(CAPACITIES, st.integers(0, 10_000))
def test_longer_requests_are_never_more(capacity, more):
    longer = replace(capacity, length=capacity.length + more)
    assert longer.requests <= capacity.requests and longer.blocks == capacity.blocks


@given(CAPACITIES)
def test_the_requests_that_fit_have_room_for_all_of_their_tokens(capacity):
    used = capacity.requests * capacity.request_blocks * capacity.block_bytes
    assert used <= capacity.available
    if capacity.available:
        assert used + capacity.context + capacity.weights + capacity.activations <= capacity.budget
    assert capacity.requests <= capacity.concurrency < capacity.requests + 1
    if not capacity.layout.sliding:
        assert capacity.requests * capacity.length <= capacity.tokens


@given(CAPACITIES)
def test_half_the_bytes_hold_at_least_twice_the_blocks(capacity):
    assert replace(capacity, itemsize=1).blocks >= 2 * replace(capacity, itemsize=2).blocks


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.integers(1, 2**38))
def test_more_utilization_never_is_a_smaller_budget(one, other, total):
    less, more = (Plan(None, requests=1, utilization=share).budget(total) for share in sorted((one, other)))
    assert less <= more <= total == Plan(None).budget(total)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"requests": 4}, "requests are those of a server: --serve"),
        ({"weights": "int8"}, "quantised weights are for inference"),
        ({"train": None, "weights": "int3"}, "weights is one of int8, int4, fp8, not 'int3'"),
        ({"train": None, "requests": 0}, "requests is a whole number of 1 or more, not 0"),
        ({"train": None, "requests": 4, "batch": 2}, "leave batch=2 out"),
        ({"train": None, "requests": 4, "utilization": 90}, "a share of the GPU above 0 and up to 1, not 90"),
        ({"train": None, "block_size": 16}, "block_size=16 is of a server's KV cache: say requests= too"),
        ({"train": None, "kv_dtype": "fp8"}, "kv_dtype='fp8' is of a server's KV cache"),
        ({"train": None, "requests": 4, "kv_dtype": "fp4"}, "kv_dtype is one of fp32"),
        ({"train": None, "requests": 4, "ranks": 2, "rank": 1}, "rank=1 is of training: the ranks of a server share"),
        ({"train": None, "requests": 4, "ranks": 2, "parallel": "ddp"}, "parallel='ddp' is of training"),
        ({"train": None, "weights": "fp8", "ranks": 2}, "weights= of several ranks is for a server: say requests= too"),
        ({"train": None, "weights": "fp8", "engine": "stub"}, "weights= is for the meta engine, without LoRA"),
        ({"train": None, "dtype": "fp8"}, "for inference with such weights: --weights fp8"),
        ({"dtype": "fp8", "lora": 8}, "fit does not combine matmuls in fp8 with LoRA"),
        ({"dtype": "fp8", "autocast": "fp16"}, "so autocast is bf16 or none, not 'fp16'"),
        ({"dtype": "int8"}, "with --serve: --weights int8"),
    ],
)
def test_plans_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        Plan(**options)
