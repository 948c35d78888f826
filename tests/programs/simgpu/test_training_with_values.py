"""Small models of five kinds train with values: losses are the CPU's, events and counters those without values."""

import pytest
import torch
import torch.nn.functional as F

import simgpu

transformers = pytest.importorskip("transformers")

STEPS = 3
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WITHOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=100, **SIZES, **WITHOUT))


def gpt():
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=100, num_key_value_heads=2, **SIZES))


def vit():
    sizes = {"image_size": 32, "patch_size": 8, "num_labels": 4}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, **WITHOUT, **sizes))


def resnet():
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 4}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))


def batch(make):
    """Token ids or images, and labels."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(1, 100, (4, 16), generator=generator)
    if make in (gpt, llama):
        return {"input_ids": ids, "labels": ids}
    labels = torch.randint(0, 2, (4,), generator=generator)
    if make is bert:
        return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}
    return {"pixel_values": torch.randn(4, 3, 32, 32, generator=generator), "labels": labels}


def train(make, device, **options):
    """The losses of some steps, as tensors."""
    torch.manual_seed(0)
    model, given = make().train().to(device), {name: one.to(device) for name, one in batch(make).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    losses = []
    for _ in range(STEPS):
        loss = model(**given).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("make", [bert, gpt, llama, vit, resnet], ids=lambda make: make.__name__)
def test_losses_are_the_cpu_s_and_memory_the_gpu_s(make, options):
    told = []
    for values in (False, True):
        with simgpu.simulated_gpu("H100", values=values):
            torch.cuda.memory._record_memory_history(context=None)
            losses = train(make, "cuda", **options)
            events = torch.cuda.memory._snapshot()["device_traces"][0]
            told.append([[(one["action"], one["addr"], one["size"]) for one in events], torch.cuda.memory_stats()])
            if values:
                found = [one.item() for one in losses]
            del losses
    assert told[0] == told[1]
    assert found == pytest.approx([one.item() for one in train(make, "cpu", **options)], rel=1e-6)


HALF = {
    "convolution": lambda x, w: F.conv2d(x, w, padding=1),
    "transposed convolution": lambda x, w: F.conv_transpose2d(x, w),
    "linear": lambda x, w: F.linear(x.flatten(1), w.flatten(1).repeat(1, 4)),
    "product": lambda x, w: x.flatten(1) @ x.flatten(1).t(),
    "batched product": lambda x, w: x.flatten(0, 1) @ x.flatten(0, 1).transpose(1, 2),
    "vector": lambda x, w: x.flatten(1) @ x.flatten(1)[0],
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", HALF)
def test_products_of_half_precision_are_summed_in_single(name, dtype):
    """So they are on a GPU; and a CPU without instructions for half precision would take far longer."""
    torch.manual_seed(0)
    x, w = torch.randn(4, 4, 6, 6).to(dtype), torch.randn(4, 4, 3, 3).to(dtype)
    with simgpu.simulated_gpu("T4", values=True):
        on_gpu = [one.cuda().requires_grad_() for one in (x, w)]
        found = HALF[name](*on_gpu)
        found.sum().backward()
        (gradient,) = (one.grad.cpu() for one in on_gpu[:1] if one.grad is not None)
        found = found.detach().cpu()
    wide = [one.float().requires_grad_() for one in (x, w)]
    right = HALF[name](*wide)
    right.sum().backward()
    assert found.dtype == dtype and torch.equal(found, right.detach().to(dtype))
    torch.testing.assert_close(gradient.float(), wide[0].grad, rtol=1e-2, atol=1e-1)
