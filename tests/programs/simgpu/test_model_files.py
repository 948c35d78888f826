"""Model files that are loaded straight to the simulated GPU, in the ways of safetensors and transformers."""

import os

import pytest
import torch

import simgpu

safetensors = pytest.importorskip("safetensors.torch")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0])
def test_safetensors_are_loaded_to_the_gpu(tmp_path, device):
    path = tmp_path / "x.safetensors"
    safetensors.save_file({"a": torch.ones(300), "b": torch.ones(3, 4).half()}, path)
    with simgpu.simulated_gpu("H100"):
        loaded = safetensors.load_file(path, device=device)
        assert {one.device for one in loaded.values()} == {torch.device("cuda", 0)}
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 2048  # the oracle's
        with safetensors.safe_open(path, "pt", device=device) as file:
            assert sorted(file.keys()) == ["a", "b"] and file.get_slice("a").get_shape() == [300]
            assert file.get_slice("a")[3:5].is_cuda and file.get_tensor("b").dtype == torch.float16
    assert safetensors.load_file(path)["a"].device.type == "cpu"
    assert "HF_DEACTIVATE_ASYNC_LOAD" not in os.environ


# What the oracle has allocated, and at the peak, for each.
@pytest.mark.parametrize(
    ("options", "nbytes"),
    [
        ({"device_map": "cuda"}, 455680),
        ({"device_map": 0}, 455680),
        ({"device_map": {"": 0}}, 455680),
        ({"device_map": torch.device("cuda")}, 455680),
        ({"device_map": "cuda:0", "dtype": torch.bfloat16}, 238080),
    ],
)
def test_from_pretrained_with_a_device_map(tmp_path, options, nbytes):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    form = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    transformers.BertModel(transformers.BertConfig(**form, vocab_size=100)).save_pretrained(tmp_path)
    with simgpu.simulated_gpu("H100"):
        model = transformers.BertModel.from_pretrained(tmp_path, **options)
        assert {one.device for one in (*model.parameters(), *model.buffers())} == {torch.device("cuda", 0)}
        assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (nbytes, nbytes)
