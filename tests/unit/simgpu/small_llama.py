"""The configuration of a small Llama, which the tests of `simgpu fit` read from a file or build."""

import json
from pathlib import Path

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
}


def written(folder: Path, **changes) -> str:
    """Writes the configuration with `changes` into a folder of its own below `folder`, and returns the file's path."""
    path = folder / "small-llama" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA | changes))
    return str(path)
