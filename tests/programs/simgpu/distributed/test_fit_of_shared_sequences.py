"""simgpu fit --context-parallel: ranks that share sequences. The oracle's workloads `ranks_context_*` compare PyTorch's
ring attention itself."""

import json

import pytest
import torch
import transformers
from torch import distributed as dist
from torch import nn

import simgpu
from simgpu.command import main
from simgpu.fitting.plan import Plan
from simgpu.report.owners import ACTIVATIONS, PARAMETERS, STATES

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1024,
    "max_position_embeddings": 65_536,
}
LENGTH = 8192
PART = 2 * 512 * 2  # bytes of keys and values of a token, in bf16


def fitted(**options):
    config = transformers.LlamaConfig(**SIZES)
    return simgpu.fit(config, 1, gpu="H100", **{"length": LENGTH, "dtype": "bf16", **options})


def sent(found, kind):
    return sum(nbytes for name, _, nbytes, _ in found.report.traffic if name == kind)


def test_the_same_as_a_script_with_fsdp2_and_pytorchs_context_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with simgpu.simulated_gpu("H100", ranks=4, rank=1):
        torch.cuda.set_device(1)
        dist.init_process_group("nccl")
        with torch.device("meta"):
            config = transformers.LlamaConfig(**SIZES)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        model.to_empty(device="cuda").train()
        optimizer = torch.optim.AdamW(model.parameters())
        mesh = init_device_mesh("cuda", (1, 4), mesh_dim_names=("data", "context"))["context"]
        for _ in range(2):
            tokens = [torch.zeros(1, LENGTH, dtype=torch.long).to("cuda") for _ in range(2)]
            cuts = context_parallel(mesh, buffers=tokens, buffer_seq_dims=[1, 1], no_restore_buffers=set(tokens))
            with cuts, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                model(input_ids=tokens[0], labels=tokens[1]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    found = fitted(ranks=4, rank=1, context_parallel=4)
    assert (found.peak, found.reserved) == peaks


def test_a_rank_keeps_its_part_of_the_activations_and_a_shard_of_the_rest():
    whole, quarter = fitted(ranks=4), fitted(ranks=4, context_parallel=4)
    assert quarter.parts[PARAMETERS] == whole.parts[PARAMETERS]
    assert quarter.parts[STATES] == pytest.approx(whole.parts[STATES], rel=0.2)
    assert whole.parts[ACTIVATIONS] / 4 * 0.6 < quarter.parts[ACTIVATIONS] < whole.parts[ACTIVATIONS] / 4 * 1.4
    assert "of attention FLOPs a token" in str(quarter.speed)
    assert whole.speed.tokens == 4 * quarter.speed.tokens == LENGTH


def test_more_ranks_need_less_each_but_more_together():
    peaks = {ranks: fitted(ranks=ranks, context_parallel=ranks).peak for ranks in (2, 4, 8)}
    alone = fitted().peak
    assert alone > peaks[2] > peaks[4] > peaks[8]
    assert all(peak >= alone / ranks for ranks, peak in peaks.items())


def test_keys_and_values_come_at_once_or_one_part_after_the_other():
    at_once, in_turn = (fitted(ranks=4, context_parallel=4, rotate=how) for how in ("allgather", "alltoall"))
    shared = 2 * PART * LENGTH  # of two layers
    assert sent(at_once, "all_gather") - sent(in_turn, "all_gather") >= shared
    assert sent(in_turn, "all_to_all") > sent(at_once, "all_to_all")
    assert in_turn.peak < at_once.peak


def test_replicas_share_sequences_too():
    found = fitted(ranks=4, parallel="ddp", context_parallel=2)
    assert found.report.completed and found.parts[STATES] > fitted(ranks=4, context_parallel=2).parts[STATES]


def test_the_command(tmp_path, capsys):
    path = tmp_path / "config.json"
    transformers.LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"]).to_json_file(path)
    arguments = ["fit", str(path), "--dtype", "bf16", "--length", "8192", "--gpu", "H100", "--context-parallel", "4"]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rank"] == [0, 4] and document["plan"]["context_parallel"] == 4
    assert "4 ranks of FSDP2, context parallel 4" in document["what"]
    assert main([*arguments, "--gpu", "T4"]) == 2
    assert "needs compute capability 8.0 or more, and T4 has 7.5" in capsys.readouterr().err
    assert not {"T4", "V100-16GB"} & set(fitted(ranks=4, context_parallel=4).every_gpu())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"context_parallel": 2}, r"context_parallel=2 of how many ranks\? Say ranks= too"),
        ({"ranks": 4, "context_parallel": 3}, "context_parallel=3 does not divide ranks=4"),
        ({"ranks": 4, "context_parallel": 4, "length": 1020}, "1020 is not a multiple of 8"),
        ({"ranks": 4, "context_parallel": 4, "train": None}, "context parallelism is for training"),
        ({"ranks": 4, "context_parallel": 4, "attention": "eager"}, "leave eager attention out"),
        ({"ranks": 4, "rotate": "alltoall"}, "of context_parallel=, not 'alltoall'"),
        ({"ranks": 4, "context_parallel": 4, "rotate": "ring"}, "allgather or alltoall"),
    ],
)
def test_plans_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        Plan(**options)


def test_a_model_without_a_length_shares_none():
    with pytest.raises(ValueError, match="Linear has no length that ranks could share"):
        inputs = torch.zeros(16, 16)
        simgpu.fit(nn.Linear(16, 16), 16, inputs=inputs, gpu="H100", ranks=2, context_parallel=2)


def test_float32_has_no_flash_attention():
    with pytest.raises(ValueError, match="16-bit"):
        fitted(ranks=2, context_parallel=2, dtype="fp32").report.peak  # noqa: B018
