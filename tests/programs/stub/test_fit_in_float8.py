"""simgpu fit --dtype fp8 --engine stub: PyTorch's CUDA code allocates the same as the meta engine. Needs the engine."""

import pytest
import transformers

import simgpu
from simgpu.stub import engine
from tests.pinned import of_pinned_torch

pytestmark = pytest.mark.skipif(
    bool(engine.supported()) or engine.unpacked(engine.DEFAULT_VERSION) is None,
    reason="the stub engine of torch 2.13.0 is not installed: simgpu engine install --torch 2.13.0",
)


@of_pinned_torch
def test_both_engines_allocate_the_same(tmp_path):
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=1024,
        max_position_embeddings=512,
        architectures=["LlamaForCausalLM"],
    )
    path = tmp_path / "config.json"
    config.to_json_file(path)
    meta, stub = (
        simgpu.fit(str(path), 16, gpu="RTX 4090", length=512, dtype="fp8", engine=name) for name in ("meta", "stub")
    )
    assert (stub.peak, stub.reserved) == (meta.peak, meta.reserved)
