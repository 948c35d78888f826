"""simgpu fit --serve: a server's paged KV cache and quantised weights, compared with what vLLM logged on real GPUs."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from torch import distributed as dist
from torch import nn

import simgpu
from simgpu.command import main
from simgpu.fitting.quantized import Quantized, quantize
from simgpu.report.owners import KV_CACHE, PARAMETERS
from tests.unit.simgpu.small_llama import written

GIB = 2**30
LOGS = json.loads((Path(__file__).parents[2] / "data" / "vllm_logs.json").read_text(encoding="utf-8"))["rows"]
WITHIN = 0.03
"""Share of the published figure by which the number of blocks may differ (docs/will_it_fit.md names it)."""

TOKEN = 2 * 2 * 2 * 32 * 2  # keys and values, layers, heads, elements, bytes of bf16


@pytest.fixture
def config(tmp_path):
    return written(tmp_path)


def served(config, requests=8, **options):
    return simgpu.fit(config, optimizer=None, gpu="H100", requests=requests, **{"dtype": "bf16", **options})


# --- the KV cache -------------------------------------------------------------------------------------


def test_the_page_is_of_the_blocks_that_were_asked_for(config):
    found = served(config, length=500)
    blocks = 8 * -(-500 // 16)
    assert found.parts[KV_CACHE] == blocks * 16 * TOKEN
    assert found.fits and "The KV blocks are an estimate" in str(found)
    assert found.serving.request_blocks == 32 and found.serving.block_bytes == 16 * TOKEN


def test_the_budget_is_a_share_of_the_gpu_without_context_weights_and_peak(config):
    found = served(config, utilization=0.5)
    capacity = found.serving
    assert capacity.budget == found.report.total_memory == found.on("H100").plan.budget(found.capacity)
    assert capacity.available == capacity.budget - capacity.context - capacity.weights - capacity.activations
    assert found.peak == capacity.weights + capacity.activations + found.parts[KV_CACHE]
    assert served(config, utilization=0.9).serving.blocks > capacity.blocks
    assert served(config, kv_dtype="fp8").serving.blocks >= 2 * served(config).serving.blocks


def test_as_many_requests_as_fit_do_fit_and_twice_as_many_do_not(config):
    most = served(config, memory="2 GiB").serving.requests
    assert most > 100
    assert served(config, memory="2 GiB", requests=most // 2).fits
    twice = served(config, memory="2 GiB", requests=2 * most)
    assert not twice.report.completed and twice.status == 1
    assert twice.serving.requests < 2 * most  # the figures are known although memory ran out


def test_a_larger_chunk_of_prefill_leaves_fewer_blocks(config):
    small, large = (served(config, prefill_chunk=chunk).serving for chunk in (2048, 65_536))
    assert small.activations < large.activations and small.blocks > large.blocks


def test_the_sampler_is_for_all_requests(config):
    one, many = (served(config, requests=number).serving for number in (1, 2048))
    vocabulary = 1024 * 4
    assert many.activations - one.activations > 2047 * vocabulary


def test_the_command_answers_with_blocks_and_requests(config, capsys):
    arguments = ["fit", config, "--serve", "--requests", "8", "--length", "512", "--dtype", "bf16", "--gpu", "H100"]
    assert main([*arguments, "--kv-dtype", "fp8", "--utilization", "0.8", "--block-size", "32"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("KV cache, estimate: ") and " blocks of 32 tokens, " in page.splitlines()[0]
    assert "requests of 512 tokens; 8 were asked for." in page and "  0.8 of 81,079.25 MiB" in page
    assert f"  {TOKEN // 2:,} B a token, 16 blocks a request" in page
    assert "8 requests × 512, fp8 KV cache) fits on a simulated H100, with " in page
    assert "the run takes" not in page


def test_the_answer_as_json(config, capsys):
    assert main(["fit", config, "--serve", "--requests", "8", "--dtype", "bf16", "--gpu", "H100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found, serving = document["results"]["serving"], served(config).serving
    assert found == serving.document()
    assert found["blocks"] == found["available"] // found["block_bytes"] and found["token_bytes"] == TOKEN
    assert document["plan"]["requests"] == 8 and document["time"] is None


def test_every_gpu_for_a_server(config, capsys):
    arguments = ["fit", config, "--serve", "--requests", "40000", "--dtype", "bf16", "--every-gpu"]
    assert main([*arguments, "--weights", "fp8"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("The smallest on which it fits: L4\n")
    assert "  a matmul in fp8 needs compute capability 8.9; less have: T4, V100-16GB, V100-32GB, RTX 3060" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--requests", "4"], "requests are those of a server: --serve"),
        (["--serve", "--requests", "4", "--largest", "batch"], "says how many requests fit: leave --largest out"),
        (["--serve", "--requests", "4", "--table"], "use --every-gpu"),
        (["--serve", "--requests", "4", "--utilization", "90"], "above 0 and up to 1, not 90.0"),
        (
            ["--serve", "--weights", "fp8", "--gpu", "A100-40GB"],
            "compute capability 8.9 or more, and A100-40GB has 8.0",
        ),
        (["--serve", "--dtype", "fp8"], "--weights fp8"),
        (["--serve", "--prefill-chunk", "512"], "prefill_chunk=512 is of a server's KV cache"),
    ],
)
def test_what_cannot_be_served_gets_one_line(config, capsys, arguments, said):
    assert main(["fit", config, *arguments]) == 2
    written = capsys.readouterr()
    assert said in written.err and written.err.count("\n") == 1 and written.out == ""


def test_a_model_without_a_cache_has_no_requests():
    images = transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    with pytest.raises(ValueError, match="vit has no KV cache"):
        simgpu.fit(images, optimizer=None, requests=2)


# --- quantised weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "least"), [("int8", 1), ("fp8", 1), ("int4", 0.5)])
def test_quantised_weights_are_the_linear_layers_without_the_head(config, kind, least):
    plain = simgpu.fit(config, optimizer=None, gpu="H100", dtype="bf16", length=128)
    small = simgpu.fit(config, optimizer=None, gpu="H100", dtype="bf16", length=128, weights=kind)
    linear = 2 * (2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 704)
    saved = plain.parts[PARAMETERS] - small.parts[PARAMETERS]
    assert saved == pytest.approx(linear * (2 - least), rel=0.04) and saved < linear * (2 - least)
    assert "Quantised weights are the tensors of their format" in str(small) and small.time is None


def test_four_bits_have_the_bytes_of_awq():
    """A group of 128 inputs has a 16-bit scale and a 4-bit zero point for each output."""
    model = nn.Sequential(nn.Linear(1024, 512, bias=False, dtype=torch.float16))
    (layer,) = quantize(model, "int4")
    assert isinstance(layer, Quantized)
    assert (
        sum(one.nbytes for one in layer.buffers()) == 1024 * 512 // 2 + 1024 // 128 * 512 * 2 + 1024 // 128 * 512 // 2
    )


def test_experts_are_not_quantised():
    config = transformers.MixtralConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_local_experts=4
    )
    with pytest.raises(ValueError, match="the experts of this model are not linear layers"):
        simgpu.fit(config, optimizer=None, gpu="H100", weights="fp8", length=64)


# --- vLLM on real GPUs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", LOGS, ids=lambda row: f"{row['source'].rsplit('/', 1)[1]}-{row.get('ranks', 1)}")
def test_blocks_are_near_to_what_vllm_logged(row, tmp_path):
    if "ranks" in row and not dist.is_available():
        pytest.skip("a PyTorch without torch.distributed")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(row["config"]))
    names = ("requests", "length", "prefill_chunk", "utilization", "dtype", "weights", "ranks")
    options = {name: row.get(name) for name in names}
    found = simgpu.fit(str(path), optimizer=None, gpu=row["gpu"], memory=row.get("memory"), **options).serving
    published = row["published"]
    if "weights_gib" in published:
        assert found.weights == pytest.approx(published["weights_gib"] * GIB, rel=WITHIN)
    if "activations_gib" in published:
        assert found.activations == pytest.approx(published["activations_gib"] * GIB, rel=0.01)
    if "available_gib" in published:
        assert found.available == pytest.approx(published["available_gib"] * GIB, rel=WITHIN)
    if "blocks" in published:
        assert found.blocks == pytest.approx(published["blocks"], rel=WITHIN)
    if "tokens" in published:
        assert found.tokens == pytest.approx(published["tokens"], rel=WITHIN)
    if "blocks_before" in published:  # of a version that counted nothing outside PyTorch's allocator, and the next one
        assert found.blocks == pytest.approx(published["blocks_before"], rel=WITHIN)
        assert found.blocks > 1.4 * published["blocks_after"]
    if "concurrency" in published:
        assert found.concurrency == pytest.approx(published["concurrency"], rel=WITHIN)
