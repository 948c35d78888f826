"""Estimates the memory of a reader's own Llama, Mistral or Qwen2 by formula, and measures how far off the formula is.

The peak of allocated memory is the largest of a few sums (ROWS), one for each place where a step can peak. In bf16, a
parameter, its gradient and AdamW's two states have 2 bytes each, and an update that is not fused needs 2 more. A Llama
layer saves per token, in bytes: 16 per hidden element (two RMSNorms, each with a float32 copy, and their outputs), 8
per inner element (gate, its SiLU, up, and their product), and 4 per element of q, k and v. The loss allocates 12 bytes
per token and vocabulary entry.

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

ROWS = {
    "full": [{"parameters": 10}, {"parameters": 6, **SAVED, **LOSS}],
    "checkpoint": [
        {"parameters": 10},
        {"parameters": 6, **INPUTS, **LOSS},
        {"parameters": 6, **INPUTS, **RECOMPUTED},
    ],
    "lora": [{"parameters": 2, **INPUTS, **LOSS}, {"parameters": 2, **INPUTS, **RECOMPUTED}],
}
"""For each plan the sums, whose largest is the estimated peak: bytes per unit of each feature."""

TYPES = ("llama", "mistral", "qwen2")
FITTED, KEPT_OUT = range(24), range(24, 28)
"""The seeds of the random configurations: the range is that of the first, and the others test it."""

SMALLEST, LARGEST = 3 * 10**8, 10**10
"""Parameters between which the range was computed."""


def features(config: dict, tokens: int) -> dict[str, float]:
    """Returns the quantities on which the estimate depends, for a config.json and a number of tokens."""
    layers, hidden, inner = (config[name] for name in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    heads, vocabulary = config["num_attention_heads"], config["vocab_size"]
    head = config.get("head_dim") or hidden // heads
    queries, keys = heads * head, (config.get("num_key_value_heads") or heads) * head
    biases = queries + 2 * keys if config["model_type"] == "qwen2" else 0
    layer = 2 * hidden * (queries + keys) + 3 * hidden * inner + 2 * hidden + biases
    tables_ = 1 if config.get("tie_word_embeddings") else 2
    sizes = {"hidden": hidden, "inner": inner, "queries": queries, "keys": keys}
    return {
        "parameters": layers * layer + hidden + tables_ * vocabulary * hidden,
        **{f"token layer {name}": tokens * layers * one for name, one in sizes.items()},
        **{f"token {name}": tokens * one for name, one in sizes.items()},
        "token vocabulary": tokens * vocabulary,
    }


def peak(config: dict, plan: str, tokens: int) -> float:
    """Returns the estimated peak of allocated memory in bytes."""
    known = features(config, tokens)
    return max(sum(bytes_ * known[name] for name, bytes_ in row.items()) for row in ROWS[plan])


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


def ratio(seed: int, plan: str) -> float:
    """Returns the smallest capacity without the context, as `simgpu.fit` finds it, divided by the estimated peak."""
    from transformers import AutoConfig

    import simgpu

    config, length, batch = drawn(seed)
    sizes = {name: value for name, value in config.items() if name != "model_type"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        AutoConfig.for_model(config["model_type"], **sizes).save_pretrained(Path(folder))
        fields = {"memory": tables.UNLIMITED, "batch": batch, "length": length, **PLANS[plan].fields}
        report = simgpu.fit(folder, gpu=BASE, **fields).report
    return ((report.smallest or report.nvidia_smi) - spec(BASE).context) / peak(config, plan, batch * length)


def compute(again: bool = False) -> Iterator[str]:
    """Computes the ratios of the random configurations that are missing, or all `again`, and yields a line for each."""
    kept = tables.stored()
    ratios = kept.setdefault("ratios", {})
    for seed in (*FITTED, *KEPT_OUT):
        for plan in ROWS:
            name = f"{plan} {seed}"
            if name not in ratios or again:
                ratios[name] = round(ratio(seed, plan), 4)
                tables.keep(kept)
                yield f"{name}: {ratios[name]:.3f}"


def stored() -> dict:
    """Returns what the page knows of the estimates: types, the context, and for each plan its sums and its range."""
    ratios = tables.stored()["ratios"]
    plans = {}
    for plan, rows in ROWS.items():
        fitted = [ratios[f"{plan} {seed}"] for seed in FITTED]
        plans[plan] = {"rows": rows, "low": min(1.0, *fitted), "high": max(fitted)}
    return {"plans": plans, "types": TYPES, "context": spec(BASE).context, "between": (SMALLEST, LARGEST)}
