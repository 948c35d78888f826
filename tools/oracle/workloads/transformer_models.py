"""Models of the `transformers` library, built on the device from configs; nothing is downloaded."""

from functools import partial
from itertools import product

import torch

MODES = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}  # None: no autocast
IMPLEMENTATIONS = ("eager", "sdpa")


def bert(stage, size, attention, autocast=None, batch=32, length=512):
    """BERT in eval mode, as `from_pretrained` returns it: one step of AdamW on `last_hidden_state.sum()`."""
    model, tokens = _bert(stage, size, attention, batch, length)
    with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
        outputs = model(tokens)
        stage("forward")
        loss = outputs.last_hidden_state.sum()
        stage("loss")
    loss.backward()
    stage("backward")
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    stage("step")
    optimizer.zero_grad()
    del outputs, loss
    stage("zero_grad")


def bert_inference(stage, size, attention, autocast=None, batch=32, length=512):
    """BERT's forward without gradients."""
    model, tokens = _bert(stage, size, attention, batch, length)
    with torch.no_grad(), torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
        outputs = model(tokens)
    stage("forward")
    del outputs
    stage("end")


def _bert(stage, size, attention, batch, length):
    from transformers import BertConfig, BertModel

    large = {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
    config = BertConfig(attn_implementation=attention, **(large if size == "large" else {}))
    with torch.device("cuda"):
        model = BertModel(config).eval()
        stage("model")
        tokens = torch.zeros(batch, length, dtype=torch.long)
    stage("input")
    return model, tokens


def train(stage, make, inputs, autocast=None, steps=2, batch=4):
    """Steps of AdamW on the model's own loss, in train mode, then inference; convolutions without cuDNN.

    ViT cuts its patches with one, and what cuDNN takes for itself only a GPU can tell.
    """
    with torch.backends.cudnn.flags(enabled=False):
        _train(stage, make, inputs, autocast, steps, batch)


def _train(stage, make, inputs, autocast, steps, batch):
    with torch.device("cuda"):
        model = make().train()
        stage("model")
        arguments = inputs(model.config, batch)
    stage("input")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
            loss = model(**arguments).loss
        stage(f"forward {step}")
        loss.backward()
        stage(f"backward {step}")
        optimizer.step()
        optimizer.zero_grad()
        del loss
        stage(f"step {step}")
    with torch.no_grad(), torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
        model.eval()(**arguments)
    stage("inference")


def _language(config, batch, length=128):
    tokens = torch.zeros(batch, length, dtype=torch.long)
    return {"input_ids": tokens, "labels": tokens}


def _padded_language(config, batch, length=128):
    # with padding, since the model asks whether there is any, and on the oracle no value is ever true
    attention_mask = torch.ones(batch, length, dtype=torch.long)
    attention_mask[:, : length // 8] = 0
    return _language(config, batch, length) | {"attention_mask": attention_mask}


def _images(config, batch):
    return {
        "pixel_values": torch.randn(batch, 3, config.image_size, config.image_size),
        "labels": torch.zeros(batch, dtype=torch.long),
    }


def _gpt2(attention, layers=12):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(attn_implementation=attention, n_layer=layers))


def _vit(attention, layers=4):
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(attn_implementation=attention, num_hidden_layers=layers, num_labels=10))


def _t5(attention, layers=2):
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            attn_implementation=attention,
            num_layers=layers,
            num_decoder_layers=layers,
            decoder_start_token_id=0,
        )
    )


def _llama(attention, layers=3):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            attn_implementation=attention, hidden_size=512, intermediate_size=1376, num_hidden_layers=layers,
            num_attention_heads=8, num_key_value_heads=2, vocab_size=32000,
        )
    )  # fmt: skip


SHAPES = {
    "gpt2_small": (_gpt2, _language),
    "vit": (_vit, _images),
    "t5": (_t5, _language),
    "llama": (_llama, _padded_language),
    "llama_unpadded": (_llama, _language),
}

WORKLOADS = {
    f"bert_{size}_{attention}_{mode}{suffix}": partial(kind, size=size, attention=attention, autocast=MODES[mode])
    for size, attention, mode, (suffix, kind) in product(
        ("base", "large"), IMPLEMENTATIONS, MODES, (("", bert), ("_inference", bert_inference))
    )
}
WORKLOADS |= {
    f"{name}_{attention}_{mode}": partial(train, make=partial(make, attention), inputs=inputs, autocast=MODES[mode])
    for (name, (make, inputs)), attention, mode in product(SHAPES.items(), IMPLEMENTATIONS, MODES)
}
