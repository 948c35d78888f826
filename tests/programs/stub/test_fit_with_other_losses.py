"""simgpu fit --chunked-loss and --dpo with --engine stub: PyTorch's CUDA code allocates the same as the meta engine."""

import json

import pytest

import simgpu
from simgpu.stub import engine
from tests.pinned import of_pinned_torch
from tests.unit.simgpu.small_llama import LLAMA

pytestmark = pytest.mark.skipif(
    bool(engine.supported()) or engine.unpacked(engine.DEFAULT_VERSION) is None,
    reason="the stub engine of torch 2.13.0 is not installed: simgpu engine install --torch 2.13.0",
)


@of_pinned_torch
@pytest.mark.parametrize(
    "options",
    [{"dtype": "bf16", "chunked_loss": "auto"}, {"dtype": "fp32", "autocast": "bf16", "dpo": True}],
    ids=["chunked loss", "DPO"],
)
def test_both_engines_allocate_the_same(tmp_path, options):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "vocab_size": 4096}))
    meta, stub = (
        simgpu.fit(str(path), 4, gpu="RTX 4090", length=512, engine=name, **options) for name in ("meta", "stub")
    )
    assert (stub.peak, stub.reserved) == (meta.peak, meta.reserved)
