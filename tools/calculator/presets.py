"""The models, plans and sizes for which the page "Will it fit?" has computed answers."""

from dataclasses import dataclass

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 131072}


@dataclass(frozen=True)
class Model:
    """Describes a model of the page.

    `config`: its config.json, as its authors published the sizes. `plans`: the keys of PLANS for which it has answers.
    `lengths`: tokens of a sequence.
    """

    name: str
    config: dict
    plans: tuple[str, ...]
    lengths: tuple[int, ...] = (512, 2048, 8192)


@dataclass(frozen=True)
class Plan:
    """Describes a way of training.

    `fields`: the arguments of `simgpu.fit`. `options`: the same for the command line. `gpus`: the numbers of GPUs for
    which it has answers.
    """

    words: str
    fields: dict
    options: str
    gpus: tuple[int, ...] = (1,)


PLANS = {
    "full": Plan("all weights, bf16", {"dtype": "bf16"}, "--dtype bf16"),
    "mixed": Plan(
        "all weights, fp32 with autocast", {"dtype": "fp32", "autocast": "bf16"}, "--dtype fp32 --autocast bf16"
    ),
    "checkpoint": Plan(
        "all weights, bf16, checkpointing",
        {"dtype": "bf16", "checkpoint": True},
        "--dtype bf16 --checkpoint",
        (1, 2, 8),
    ),
    "lora": Plan(
        "LoRA of rank 16, bf16, checkpointing",
        {"dtype": "bf16", "lora": 16, "checkpoint": True},
        "--dtype bf16 --lora 16 --checkpoint",
    ),
    "qlora": Plan(
        "QLoRA of rank 16, checkpointing",
        {"dtype": "bf16", "lora": 16, "four_bit": True, "checkpoint": True},
        "--dtype bf16 --qlora 16 --checkpoint",
    ),
}
"""Ways of training with AdamW, which is not fused. With more than one GPU, FSDP2 shards every layer."""

SMALL, ALL = ("full", "mixed", "checkpoint"), tuple(PLANS)

MODELS = {
    "gpt2": Model(
        "GPT-2, 124 M",
        {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
        SMALL,
        (256, 512, 1024),
    ),
    "bert-base": Model(
        "BERT-base, 110 M",
        {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
        SMALL,
        (128, 256, 512),
    ),
    "llama-3.2-1b": Model(
        "Llama 3.2 1B",
        LLAMA
        | {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True},
        ALL,
    ),
    "smollm2-1.7b": Model(
        "SmolLM2 1.7B",
        LLAMA
        | {"vocab_size": 49152, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24}
        | {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 64, "tie_word_embeddings": True}
        | {"max_position_embeddings": 8192},
        ALL,
    ),
    "llama-3.2-3b": Model(
        "Llama 3.2 3B",
        LLAMA
        | {"vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28}
        | {"num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
        ALL,
    ),
    "qwen2.5-7b": Model(
        "Qwen2.5 7B",
        {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 131072}
        | {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
        | {"num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False},
        ALL,
    ),
    "llama-3-8b": Model(
        "Llama 3 8B",
        LLAMA
        | {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False},
        ALL,
    ),
}

BATCHES = (1, 2, 4, 8, 16, 32)

MOST_TOKENS = 32768
"""Tokens of a micro-batch; larger ones have no answers."""

BASE = "A100-80GB"
"""The GPU on which the tables are computed, with memory for everything."""

SAMPLE = (
    ("gpt2", "full", 1, 512, 8),
    ("gpt2", "mixed", 1, 1024, 4),
    ("bert-base", "full", 1, 128, 32),
    ("bert-base", "checkpoint", 1, 512, 16),
    ("llama-3.2-1b", "full", 1, 2048, 4),
    ("llama-3.2-1b", "qlora", 1, 2048, 1),
    ("smollm2-1.7b", "mixed", 1, 2048, 2),
    ("llama-3.2-1b", "checkpoint", 8, 2048, 2),
)
"""Cells that are computed on every GPU: what it needs more or less than BASE is a range over them."""


def cells():
    """Yields every cell of the tables: the model, the plan, the number of GPUs, the length, the batch."""
    for model, of in MODELS.items():
        for plan in of.plans:
            for gpus in PLANS[plan].gpus:
                for length in of.lengths:
                    for batch in BATCHES:
                        if batch * length <= MOST_TOKENS:
                            yield model, plan, gpus, length, batch
