"""simgpu fit --chunked-loss: logits and loss of a few tokens at a time, with gradients in the forward pass."""

import json

import pytest
import torch
import transformers
from torch import distributed as dist
from torch import nn

import simgpu
from simgpu.command import main
from simgpu.fitting.chunked_loss import AUTO, IGNORED, LinearCrossEntropy, chunk_size
from simgpu.fitting.plan import Plan
from simgpu.report.owners import GRADIENTS
from tests.unit.simgpu.small_llama import written

VOCABULARY, HIDDEN, TOKENS = 16_384, 256, 8 * 512


@pytest.fixture
def config(tmp_path):
    return written(tmp_path, vocab_size=VOCABULARY)


def fitted(config, chunked_loss=AUTO, **options):
    options = {"dtype": "bf16", "length": 512, **options}
    return simgpu.fit(config, 8, gpu="H100", chunked_loss=chunked_loss, **options)


@pytest.mark.parametrize("chunks", [1, 3, 7, AUTO])
@pytest.mark.parametrize("trained", [True, False])
def test_loss_and_gradients_are_those_of_cross_entropy(chunks, trained):
    torch.manual_seed(0)
    hidden = torch.randn(50, 16, requires_grad=True)
    weight = torch.randn(40, 16, requires_grad=trained)
    labels = torch.randint(40, (50,))
    labels[::7] = IGNORED
    expected = nn.functional.cross_entropy(hidden @ weight.t(), labels)
    found = LinearCrossEntropy.apply(hidden, weight, labels, chunks)
    torch.testing.assert_close(found, expected)
    trainable = [hidden, weight] if trained else [hidden]
    for one, other in zip(
        torch.autograd.grad(2 * found, trainable), torch.autograd.grad(2 * expected, trainable), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_chunks_of_liger_are_a_power_of_two():
    """As many logits as hidden states: a vocabulary of 128,256 and a width of 4,096 make 32 chunks."""
    assert chunk_size(8192, 4096, 128_256, AUTO) == 256
    assert chunk_size(8192, 4096, 32_000, AUTO) == 1024
    assert chunk_size(5, 4096, 512, AUTO) == 5
    assert [chunk_size(1000, 1, 1, chunks) for chunks in (1, 3, 1000, 5000)] == [1000, 334, 1, 1]


def test_the_logits_of_a_batch_never_exist(config):
    """Whole logits are two of bf16 and two of float32 at the loss; Liger's chunk has as many as the hidden states."""
    whole, chunked = fitted(config, None), fitted(config)
    assert whole.peak - chunked.peak > 2 * 4 * TOKENS * VOCABULARY
    assert "bf16, batch 8 × 512, chunked loss" in str(chunked)
    assert "like Liger's fused linear cross-entropy" in str(chunked)


def test_more_chunks_need_less(config):
    two, eight, sixty_four = (fitted(config, chunks).peak for chunks in (2, 8, 64))
    assert two - eight == pytest.approx(TOKENS * (1 / 2 - 1 / 8) * VOCABULARY * 2, rel=0.02)
    assert sixty_four < eight
    assert "loss in 64 chunks" in str(fitted(config, 64).plan)


def test_a_frozen_head_has_no_gradient(config):
    table = VOCABULARY * HIDDEN * 2
    trained, frozen = fitted(config), fitted(config, lora=8)
    assert trained.parts[GRADIENTS] > table > frozen.parts.get(GRADIENTS, 0)


@pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")
@pytest.mark.parametrize("parallel", ["fsdp", "ddp"])
def test_one_rank_of_many(config, parallel):
    whole, chunked = (fitted(config, chunks, ranks=4, parallel=parallel) for chunks in (None, AUTO))
    assert whole.peak - chunked.peak > 2 * 4 * TOKENS * VOCABULARY
    mixed = fitted(config, ranks=4, dtype="fp32", autocast="bf16", parallel=parallel, checkpoint=True)
    assert mixed.report.completed


def test_the_command(config, capsys):
    arguments = ["fit", config, "--dtype", "bf16", "--batch", "8", "--length", "512", "--gpu", "H100"]
    assert main([*arguments, "--chunked-loss", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["chunked_loss"] == AUTO
    assert main([*arguments, "--chunked-loss", "16", "--checkpoint", "--accumulate", "2"]) == 0
    assert "checkpoints, loss in 16 chunks" in capsys.readouterr().out.splitlines()[0]
    assert main([*arguments, "--chunked-loss", "0"]) == 2
    assert "a number of chunks of 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chunked_loss": 0}, 'a number of chunks of 1 or more, "auto" or None, not 0'),
        ({"chunked_loss": True}, "not True"),
        ({"chunked_loss": "many"}, "not 'many'"),
        ({"chunked_loss": 4, "train": None}, "inference has no loss"),
    ],
)
def test_plans_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        Plan(**options)


def test_models_without_such_a_loss(config):
    def own(outputs, batch):
        return outputs.logits.float().mean()

    with pytest.raises(ValueError, match="with their own loss, not small-llama"):
        fitted(config, loss=own)
    with pytest.raises(ValueError, match="for language models of transformers"):
        simgpu.fit(lambda: nn.Linear(8, 8), inputs=lambda size: torch.zeros(size, 8), chunked_loss=AUTO)
    biased = transformers.PhiConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(ValueError, match="a linear layer without bias, and phi has none"):
        simgpu.fit(biased, length=64, gpu="H100", chunked_loss=AUTO)
