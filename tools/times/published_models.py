"""Builds the models of published rows that timm, torchvision or transformers have, and one step of what was timed.

Only rows of one GPU are built. What a source leaves open is assumed as `ASSUMPTIONS` says.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import nn

from tools.times import rows as vision
from tools.times.published import Row

ASSUMPTIONS = (
    "NVIDIA's containers, and torch before 1.12, compute float32 matmuls in TF32 where the GPU can",
    "BERT on SQuAD has 384 tokens, as NVIDIA's script says, and dropout",
    "optimizers: SGD with momentum for images; AdamW for BERT, fused with apex and a loop without it",
    "training in transformers' tables is forward and backward without an optimizer, with a head for language models",
    "transformers' image models of 2023 compute attention from separate operators",
)
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
Step = Callable[[], object]


def builder(row: Row) -> Callable[[Row], Step] | None:
    """Returns the function that makes the step of a row inside a simulated GPU, None if the row cannot be built."""
    if row.gpus != 1 or row.simulated_gpu is None or row.mode == "compiled, max-autotune":
        return None
    make = BUILDERS.get(row.source)
    if make is nvidia and not (row.model in CONVNETS or row.model.endswith("SQuAD")):
        return None
    return make


@contextmanager
def precision(row: Row) -> Iterator[None]:
    """Sets TF32 for float32 as the row has it, and restores it."""
    before = torch.backends.cuda.matmul.allow_tf32
    old = (row.torch or "").startswith(("0.", "1.11"))
    torch.backends.cuda.matmul.allow_tf32 = row.precision == "tf32" or old or "nvcr.io" in (row.container or "")
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def autocast(row: Row):
    """Returns the context of autocast in float16, or one that does nothing."""
    return torch.autocast("cuda", torch.float16) if row.precision == "amp float16" else nullcontext()


def compiled(model: nn.Module, row: Row) -> Callable:
    """Returns the model, compiled as the row says."""
    if row.mode == "compiled":
        return torch.compile(model)
    return torch.compile(model, mode="reduce-overhead") if row.mode == "compiled, reduce-overhead" else model


def forward(model: Callable, row: Row, *inputs, **named) -> Step:
    """Returns a forward pass without gradients."""

    def step():
        with torch.no_grad(), autocast(row):
            return model(*inputs, **named)

    return step


def timm(row: Row) -> Step:
    """Returns a step of timm's benchmark.py, or of EfficientViT's speed_test.py, which does the like."""
    layout = torch.channels_last if row.layout == "channels last" else torch.contiguous_format
    library = importlib.import_module("timm")
    library.layers.set_fused_attn(not row.torch.startswith("1."))
    name = row.model.lower().replace("-", "_")
    model = _of_size(library, name, row.image).to("cuda", memory_format=layout)
    images = torch.randn(row.batch, 3, row.image, row.image, device="cuda").contiguous(memory_format=layout)
    if row.work == "training":
        return vision._training(compiled(model, row), images)
    return vision._inference(compiled(model.eval(), row), images)


def _of_size(library, name: str, size: int) -> nn.Module:
    try:
        return library.create_model(name, img_size=size)
    except TypeError:
        return library.create_model(name)


def torchvision(row: Row) -> Step:
    """Returns a step whose images are copied to the GPU, without an optimizer."""
    models = importlib.import_module("torchvision").models
    dtype = DTYPES.get(row.precision, torch.float32)
    model = getattr(models, row.model)().to("cuda", dtype)
    images = torch.randn(row.batch, 3, row.image, row.image, dtype=dtype)
    labels = torch.zeros(row.batch, dtype=torch.long, device="cuda")
    model.train(row.work != "inference")

    def step():
        model.zero_grad()
        output = model(images.cuda())
        output = output.logits if hasattr(output, "logits") else output
        nn.functional.cross_entropy(output, labels).backward()

    def inference():
        with torch.no_grad():
            model(images.cuda())

    return inference if row.work == "inference" else step


def load() -> None:
    """Imports timm, torchvision and transformers, which must happen outside a simulated GPU."""
    vision.timm()
    importlib.import_module("torchvision")
    importlib.import_module("transformers.modeling_utils")


def _resnext(library):
    blocks = importlib.import_module("torchvision").models.resnet
    return blocks.ResNet(blocks.Bottleneck, [3, 4, 23, 3], groups=32, width_per_group=4)


CONVNETS: dict[str, Callable] = {
    "resnet50": lambda library: importlib.import_module("torchvision").models.resnet50(),
    "resnext101-32x4d": _resnext,
    "se-resnext101-32x4d": lambda library: library.create_model("seresnext101_32x4d"),
    "efficientnet-b0": lambda library: library.create_model("efficientnet_b0"),
    "efficientnet-b4": lambda library: library.create_model("efficientnet_b4"),
}


def nvidia(row: Row) -> Step:
    """Returns a step of NVIDIA's DeepLearningExamples: convolutional networks, or BERT on SQuAD."""
    if row.model not in CONVNETS:
        return _squad(row)
    layout = torch.channels_last if row.layout == "channels last" else torch.contiguous_format
    model = CONVNETS[row.model](importlib.import_module("timm")).to("cuda", memory_format=layout)
    images = torch.randn(row.batch, 3, row.image, row.image, device="cuda").contiguous(memory_format=layout)
    if row.work == "inference":
        return forward(model.eval(), row, images)
    labels = torch.zeros(row.batch, dtype=torch.long, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    return trained(row, optimizer, lambda: nn.functional.cross_entropy(model(images), labels))


def _squad(row: Row) -> Step:
    """Returns a step of BERT with the head for SQuAD."""
    from transformers import BertConfig, BertForQuestionAnswering

    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    config = BertConfig(**(large if "large" in row.model else {}), attn_implementation="eager")
    half = row.precision == "apex O2 float16"
    model = BertForQuestionAnswering(config).to("cuda", torch.float16 if half else torch.float32)
    tokens = torch.ones(row.batch, row.tokens or 384, dtype=torch.long, device="cuda")
    place = torch.zeros(row.batch, dtype=torch.long, device="cuda")
    if row.work == "inference":
        return forward(model.eval(), row, tokens)

    def loss():
        return model(tokens, start_positions=place, end_positions=place).loss

    if half:
        return _with_master_copies(model, loss)
    return trained(row, torch.optim.AdamW(model.parameters(), foreach=False), loss)


def _with_master_copies(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Step:
    """Returns a step as with apex's level O2: gradients in float16, a fused optimizer on copies in float32."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    masters = [parameter.detach().float() for parameter in parameters]
    optimizer = torch.optim.AdamW(masters, fused=True)

    def step():
        model.zero_grad()
        (loss() * 1024).backward()
        for master, parameter in zip(masters, parameters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        torch._foreach_mul_([master.grad for master in masters if master.grad is not None], 1 / 1024)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(parameters, masters)

    return step


def trained(row: Row, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> Step:
    """Returns a step of training, with a scaler under autocast."""
    scaler = torch.amp.GradScaler("cuda", enabled=row.precision == "amp float16")

    def step():
        optimizer.zero_grad()
        with autocast(row):
            value = loss()
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def image_classifier(row: Row) -> Step:
    """Returns the inference of one of transformers' image models."""
    import transformers as library

    eager = {"attn_implementation": "eager"}
    configs = {
        "google/vit-base-patch16-224": partial(library.ViTConfig, num_labels=1000, **eager),
        "microsoft/beit-base-patch16-224-pt22k-ft22k": partial(
            library.BeitConfig, use_relative_position_bias=True, num_labels=21841, **eager
        ),
        "facebook/convnext-large-224": partial(
            library.ConvNextConfig, hidden_sizes=[192, 384, 768, 1536], depths=[3, 3, 27, 3], num_labels=1000
        ),
        "microsoft/resnet-50": partial(library.ResNetConfig, num_labels=1000),
    }
    model = library.AutoModelForImageClassification.from_config(configs[row.model]()).cuda().eval()
    images = torch.randn(row.batch, 3, row.image, row.image, device="cuda")
    return forward(compiled(model, row), row, images)


def language_model(row: Row) -> Step:
    """Returns a step of BERT base or OPT 350M in float16, with the attention that the row names."""
    import transformers as library

    if "bert" in row.model:
        model = library.BertForMaskedLM(library.BertConfig(attn_implementation=row.attention))
    else:
        shape = {"hidden_size": 1024, "num_hidden_layers": 24, "ffn_dim": 4096, "num_attention_heads": 16}
        config = library.OPTConfig(
            **shape, word_embed_proj_dim=512, do_layer_norm_before=False, attn_implementation=row.attention
        )
        model = library.OPTForCausalLM(config)
    model = model.to("cuda", DTYPES[row.precision]).train(row.work == "training")
    tokens = torch.ones(row.batch, row.tokens, dtype=torch.long, device="cuda")
    if row.work == "inference":
        return forward(model, row, tokens)
    if row.work == "decoding":
        with torch.no_grad():
            cache = model(tokens, use_cache=True).past_key_values
        return forward(model, row, tokens[:, :1], past_key_values=cache, use_cache=True)

    def step():
        model.zero_grad()
        model(tokens).logits.sum().backward()

    return step


LLAMAS = {
    "Llama 3.2 1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64},
    "Llama 3.1 8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128},
}


def llama(row: Row) -> Step:
    """Returns a step of transformers' Llama 3, with checkpointing in training."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **LLAMAS[row.model],
        vocab_size=128256,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        tie_word_embeddings=row.model == "Llama 3.2 1B",
        attn_implementation=row.attention,
    )
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(DTYPES[row.precision])
    tokens = torch.zeros(row.batch, row.tokens, dtype=torch.long, device="cuda")
    model.train(row.work != "inference")
    if row.work == "inference":
        return forward(compiled(model, row), row, input_ids=tokens)
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run = compiled(model, row)

    def step():
        model.zero_grad(set_to_none=True)
        run(input_ids=tokens, labels=tokens).loss.backward()
        if row.optimizer:
            optimizer.step()

    return step


BUILDERS: dict[str, Callable[[Row], Step]] = {
    "pytorch-image-models": timm,
    "efficientvit": timm,
    "pytorch-gpu-benchmark": torchvision,
    "deep-learning-benchmark": torchvision,
    "deep-learning-examples": nvidia,
    "lambda": nvidia,
    "transformers-compile": image_classifier,
    "transformers-sdpa": language_model,
    "ml-engineering": llama,
}
