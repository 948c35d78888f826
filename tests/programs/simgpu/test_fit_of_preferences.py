"""simgpu fit --dpo: preference training with a frozen reference, or with LoRA's adapters switched off."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import simgpu
from simgpu.command import main
from simgpu.fitting import preferences
from simgpu.fitting.lora import adapt, without_adapters
from simgpu.fitting.plan import Plan
from simgpu.report.owners import GRADIENTS, PARAMETERS, STATES
from tests.unit.simgpu.small_llama import LLAMA, written

VOCABULARY, HIDDEN = 16_384, 256


@pytest.fixture
def config(tmp_path):
    return written(tmp_path, vocab_size=VOCABULARY)


def fitted(config, batch=4, **options):
    return simgpu.fit(config, batch, gpu="H100", **{"dtype": "bf16", "length": 512, "dpo": True, **options})


@pytest.mark.parametrize("trained", [True, False])
def test_log_probabilities_and_gradients_are_those_of_log_softmax(monkeypatch, trained):
    monkeypatch.setattr(preferences, "TOKENS", 7)
    monkeypatch.setattr(preferences, "ENTRIES", 16)
    torch.manual_seed(0)
    hidden = torch.randn(20, 8, requires_grad=True)
    weight = torch.randn(50, 8, requires_grad=trained)
    labels, factors = torch.randint(50, (20,)), torch.randn(20)
    expected = (hidden @ weight.t()).log_softmax(-1).gather(1, labels[:, None]).squeeze(1)
    found = preferences.LogProbabilities.apply(hidden, weight, labels)
    torch.testing.assert_close(found, expected)
    leaves = [hidden, weight] if trained else [hidden]
    pairs = (torch.autograd.grad((one * factors).sum(), leaves) for one in (found, expected))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_mask_of_the_batch_reaches_the_model():
    model = LlamaForCausalLM(LlamaConfig(**LLAMA)).eval()
    subject = SimpleNamespace(cache=1, own_loss=False, name="llama")
    tokens, mask = torch.arange(8).view(2, 4), torch.ones(2, 4, dtype=torch.long)
    mask[0, 0] = 0
    preferences.apply(model, subject)
    plain, masked = model(tokens).view(2, 3), model(tokens, attention_mask=mask).view(2, 3)
    assert not torch.allclose(plain[0, 1:], masked[0, 1:])
    torch.testing.assert_close(plain[1], masked[1])


def test_the_reference_is_a_second_copy_of_the_weights(config):
    pairs, plain = fitted(config), fitted(config, batch=8, dpo=False, chunked_loss="auto")
    assert pairs.parts[PARAMETERS] == 2 * plain.parts[PARAMETERS]
    assert pairs.parts[STATES] == plain.parts[STATES]
    assert "bf16, batch 4 × 512, DPO" in str(pairs) and "a batch of N pairs is 2 N sequences" in str(pairs)
    assert pairs.speed is None and pairs.time is not None


def test_with_adapters_the_model_is_its_own_reference(config):
    pairs, plain = fitted(config, lora=8), fitted(config, lora=8, dpo=False)
    assert pairs.parts[PARAMETERS] == plain.parts[PARAMETERS]
    assert fitted(config).parts[GRADIENTS] > 10 * pairs.parts.get(GRADIENTS, 1)
    assert fitted(config).peak > pairs.peak


def test_adapters_are_switched_off_and_on_again():
    model = adapt(nn.Sequential(nn.Linear(4, 4)), 2)
    rows = torch.randn(3, 4)
    with without_adapters(model):
        torch.testing.assert_close(model(rows), model[0].base(rows))
    assert not torch.equal(model(rows), model[0].base(rows))


def test_twice_the_pairs_and_checkpoints(config):
    one, two = fitted(config, batch=8), fitted(config, batch=16)
    assert two.peak > one.peak
    assert fitted(config, batch=16, checkpoint=True).peak < two.peak
    assert fitted(config, dtype="fp32", autocast="bf16", accumulate=2).report.completed


@pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")
def test_one_rank_of_many(config):
    whole, sharded, copied = (fitted(config, **more) for more in ({}, {"ranks": 4}, {"ranks": 4, "parallel": "ddp"}))
    assert sharded.parts[PARAMETERS] == pytest.approx(whole.parts[PARAMETERS] / 4, rel=0.02)
    assert copied.parts[PARAMETERS] == whole.parts[PARAMETERS]


def test_the_command(config, capsys):
    arguments = ["fit", config, "--dtype", "bf16", "--batch", "2", "--length", "128", "--gpu", "H100", "--dpo"]
    assert main([*arguments, "--qlora", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["dpo"] is True
    assert main([*arguments, "--chunked-loss"]) == 2
    assert "does not combine DPO with chunked_loss='auto'" in capsys.readouterr().err
    assert main([*arguments, "--serve"]) == 2
    assert "DPO is training" in capsys.readouterr().err


def test_plans_that_cannot_be():
    with pytest.raises(ValueError, match="does not combine DPO with context_parallel=2"):
        Plan(dpo=True, ranks=2, context_parallel=2)
    with pytest.raises(ValueError, match="DPO is for language models of transformers"):
        simgpu.fit(lambda: nn.Linear(8, 8), inputs=lambda size: torch.zeros(size, 8), dpo=True)
