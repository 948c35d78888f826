"""Estimates the memory of a reader's own Llama, Mistral or Qwen2 by formula, and measures how far off the formula is.

The peak of allocated memory is the largest of a few sums (ROWS), one for each place where a step can peak. In bf16, a
parameter, its gradient and AdamW's two states have 2 bytes each, and an update that is not fused needs 2 more. A Llama
layer saves per token, in bytes: 16 per hidden element (two RMSNorms, each with a float32 copy, and their outputs), 8
per inner element (gate, its SiLU, up, and their product), and 4 per element of q, k and v. The loss allocates 12 bytes
per token and vocabulary entry.

With several GPUs, FSDP2 leaves each of them a shard of these bytes per parameter. What is outside the layers is whole
from the first forward to the end of the backward pass, and so is one layer when the loss peaks. In backward a second
layer is gathered before it is needed, and whole gradients and their copy for the reduce-scatter are added. When the
backward of the first layer and of the embedding runs, the shards of all gradients exist.

What is larger than the sums is free space in the cache, and the CUDA context. So a capacity is a range: the sums times
`low` and times `high`, plus the context. `high` is the largest ratio of what `simgpu.fit` finds for random
configurations, and `low` is 1, or the smallest ratio if that is less.
"""

import random
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from simgpu.gpus.specs import spec
from tools.calculator import tables
from tools.calculator.presets import BASE, MOST_TOKENS, PLANS

LAYER = {"hidden": 16, "inner": 8, "queries": 4, "keys": 4}
SAVED = {f"token layer {name}": bytes_ for name, bytes_ in LAYER.items()}
INPUTS = {"token layer hidden": 2}
RECOMPUTED = {f"token {name}": bytes_ for name, bytes_ in LAYER.items()} | {"token inner": 12}
LOSS = {"token vocabulary": 12}
SHARDED = [
    {"shard": 10},
    {"shard": 6, "outside": 2, "layer": 2, **INPUTS, **LOSS},
    {"shard": 6, "outside": 4, "layer": 8, **INPUTS, **RECOMPUTED},
    {"shard": 8, "outside": 4, "layer": 8, **RECOMPUTED},
    {"shard": 8, "outside": 8},
]

ROWS = {
    "full": [{"parameters": 10}, {"parameters": 6, **SAVED, **LOSS}],
    "checkpoint": [
        {"parameters": 10},
        {"parameters": 6, **INPUTS, **LOSS},
        {"parameters": 6, **INPUTS, **RECOMPUTED},
    ],
    "lora": [{"parameters": 2, **INPUTS, **LOSS}, {"parameters": 2, **INPUTS, **RECOMPUTED}],
    "checkpoint on 2": SHARDED,
    "checkpoint on 8": SHARDED,
}
"""For each way the sums, whose largest is the estimated peak: bytes per unit of each feature.

A way is a plan, or a plan "on" a number of GPUs.
"""

TYPES = ("llama", "mistral", "qwen2")
FITTED, KEPT_OUT = range(24), range(24, 28)
"""The seeds of the random configurations: the range is that of the first, and the others test it."""

FITTED_SHARDED = range(12)
"""The first seeds for several GPUs, where a simulation takes longest."""

SMALLEST, LARGEST = 3 * 10**8, 10**10
"""Parameters between which the range was computed."""


def split(way: str) -> tuple[str, int]:
    """Returns a way's plan and its number of GPUs."""
    plan, _, gpus = way.partition(" on ")
    return plan, int(gpus or 1)


def features(config: dict, tokens: int, gpus: int = 1) -> dict[str, float]:
    """Returns the quantities on which the estimate depends: of a config.json, the tokens of each GPU, and the GPUs."""
    layers, hidden, inner = (config[name] for name in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    heads, vocabulary = config["num_attention_heads"], config["vocab_size"]
    head = config.get("head_dim") or hidden // heads
    queries, keys = heads * head, (config.get("num_key_value_heads") or heads) * head
    biases = queries + 2 * keys if config["model_type"] == "qwen2" else 0
    layer = 2 * hidden * (queries + keys) + 3 * hidden * inner + 2 * hidden + biases
    tables_ = 1 if config.get("tie_word_embeddings") else 2
    sizes = {"hidden": hidden, "inner": inner, "queries": queries, "keys": keys}
    outside = hidden + tables_ * vocabulary * hidden
    return {
        "parameters": layers * layer + outside,
        "shard": (layers * layer + outside) / gpus,
        "layer": layer,
        "outside": outside,
        **{f"token layer {name}": tokens * layers * one for name, one in sizes.items()},
        **{f"token {name}": tokens * one for name, one in sizes.items()},
        "token vocabulary": tokens * vocabulary,
    }


def peak(config: dict, way: str, tokens: int) -> float:
    """Returns the estimated peak of allocated memory in bytes."""
    known = features(config, tokens, split(way)[1])
    return max(sum(bytes_ * known[name] for name, bytes_ in row.items()) for row in ROWS[way])


def drawn(seed: int) -> tuple[dict, int, int]:
    """Returns a random configuration with SMALLEST to LARGEST parameters, a length and a batch."""
    rng = random.Random(seed)
    while True:
        head, heads = rng.choice((64, 128)), rng.choice((8, 12, 16, 20, 24, 28, 32, 40))
        hidden = head * heads
        config = {
            "model_type": rng.choice(TYPES),
            "hidden_size": hidden,
            "intermediate_size": 64 * round(hidden * rng.uniform(2, 5) / 64),
            "num_hidden_layers": rng.randint(12, 40),
            "num_attention_heads": heads,
            "num_key_value_heads": rng.choice([one for one in (1, 2, 4, 8, heads) if heads % one == 0]),
            "vocab_size": 64 * rng.randint(400, 2400),
            "tie_word_embeddings": rng.random() < 0.5,
            "max_position_embeddings": 131072,
            "sliding_window": None,
        }
        length = rng.choice((512, 1024, 2048, 4096, 8192))
        batch = rng.choice([one for one in (1, 2, 4, 8, 16) if one * length <= MOST_TOKENS])
        if SMALLEST <= features(config, 1)["parameters"] <= LARGEST:
            return config, length, batch


def ratio(seed: int, way: str) -> float:
    """Returns the smallest capacity without the context, as `simgpu.fit` finds it, divided by the estimated peak."""
    from transformers import AutoConfig

    import simgpu

    config, length, batch = drawn(seed)
    plan, gpus = split(way)
    sizes = {name: value for name, value in config.items() if name != "model_type"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        AutoConfig.for_model(config["model_type"], **sizes).save_pretrained(Path(folder))
        fields = {"memory": tables.UNLIMITED, "batch": batch, "length": length, **PLANS[plan].fields}
        fields |= {"ranks": gpus} if gpus > 1 else {}
        report = simgpu.fit(folder, gpu=BASE, **fields).report
    return ((report.smallest or report.nvidia_smi) - spec(BASE).context) / peak(config, way, batch * length)


def fitted(way: str) -> range:
    """Returns the seeds of the configurations whose ratios are a way's range."""
    return FITTED if split(way)[1] == 1 else FITTED_SHARDED


def compute(again: bool = False) -> Iterator[str]:
    """Computes the ratios of the random configurations that are missing, or all `again`, and yields a line for each."""
    kept = tables.stored()
    ratios = kept.setdefault("ratios", {})
    for way in ROWS:
        for seed in (*fitted(way), *KEPT_OUT):
            name = f"{way} {seed}"
            if name not in ratios or again:
                ratios[name] = round(ratio(seed, way), 4)
                tables.keep(kept)
                yield f"{name}: {ratios[name]:.3f}"


def stored() -> dict:
    """Returns what the page knows of the estimates: types, the context, and for each way its sums and its range."""
    ratios = tables.stored()["ratios"]
    ways = {}
    for way, rows in ROWS.items():
        found = [ratios[f"{way} {seed}"] for seed in fitted(way)]
        ways[way] = {"rows": rows, "low": min(1.0, *found), "high": max(found), "fitted": len(found)}
    return {"ways": ways, "types": TYPES, "context": spec(BASE).context, "between": (SMALLEST, LARGEST)}
