"""The course's models: shapes and parameter counts."""

import pytest
import torch

from helpers import models


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_three_linear():
    model = models.ThreeLinear()
    assert count(model) * 4 == 16.015625 * 2**20
    assert model(torch.zeros(5, 1024)).shape == (5, 2048)


@pytest.mark.parametrize(("size", "parameters"), [("base", 109_482_240), ("large", 335_141_888)])
def test_bert(size, parameters):
    with torch.device("meta"):
        model = models.bert(size, attention="sdpa")
    assert count(model) == parameters
    assert not model.training
    assert model.config._attn_implementation == "sdpa"


def test_bert_takes_config_fields_and_refuses_other_sizes():
    with torch.device("meta"):
        assert len(models.bert(num_hidden_layers=1).encoder.layer) == 1
    with pytest.raises(ValueError, match="'base', 'large'; 'huge' was given"):
        models.bert("huge")


@pytest.mark.parametrize(("every", "which"), [(1, [True] * 4), (2, [True, False, True, False])])
def test_layers_are_checkpointed(every, which):
    with torch.device("meta"):
        model = models.bert(num_hidden_layers=4)
    models.checkpoint_layers(model, every_n_layers=every)
    assert [layer.gradient_checkpointing for layer in model.encoder.layer] == which
    assert model.encoder.layer[0]._gradient_checkpointing_func.keywords == {"use_reentrant": False}


def test_layers_are_checkpointed_under_the_method_s_older_name():
    class Older(torch.nn.Module):
        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None, every_n_layers=1, offload=False):
            self.told = gradient_checkpointing_kwargs, every_n_layers, offload

    model = Older()
    models.checkpoint_layers(model, 3)
    assert model.told == ({"use_reentrant": False}, 3, False)


def test_a_model_that_is_not_of_transformers_has_no_layers_to_checkpoint():
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'gradient_checkpointing_enable'"):
        models.checkpoint_layers(torch.nn.Linear(1, 1))


def test_vgg16_has_the_parameters_of_the_paper():
    with torch.device("meta"):
        model = models.vgg()
        assert model(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)
        assert models.vgg((64, "pool", 128, "pool"), side=160)(torch.zeros(1, 3, 160, 160)).shape == (1, 1000)
    assert sum(p.numel() for p in model.parameters()) == 138_357_544
    assert all(layer.inplace for layer in model if isinstance(layer, torch.nn.ReLU))


def test_vgg_refuses_an_image_that_its_poolings_use_up():
    with pytest.raises(ValueError, match="5 poolings leave nothing of 31 pixels"):
        models.vgg(side=31)


def test_a_patch_mlp_takes_images_of_bytes():
    model = models.PatchMLP(8)
    x = torch.randint(0, 255, (2, 3, 32, 48), dtype=torch.uint8)
    assert model(x).shape == (2, 10) and torch.equal(model(x), model(x.float()))


def test_llama_of_eight_billion():
    """Llama 3 8B has 8,030,261,248 parameters (its model card says 8.03B)."""
    with torch.device("meta"):
        whole, small = models.Llama(), models.Llama(2, 64, 4, 2, 96, vocabulary=100, longest=16)
        assert sum(one.numel() for one in whole.parameters()) == 8_030_261_248
        assert small(torch.zeros(3, 5, dtype=torch.long)).shape == (3, 5, 100)


def test_a_llama_layer_in_half_precision_turns_by_angles_kept_in_float32():
    layer = models.LlamaLayer(64, 4, 2, 96, 16)
    for parameter in layer.parameters():
        parameter.data = parameter.data.bfloat16()
    assert layer(torch.zeros(1, 5, 64, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_gpt_around_an_attention_and_an_mlp_of_the_caller():
    layers = [models.GPTLayer(16, torch.nn.Identity(), torch.nn.Linear(16, 16)) for _ in range(2)]
    model = models.GPT(layers, 16, 100)
    assert count(model) == 2 * 100 * 16 + 32 + 2 * (64 + 16 * 17)
    assert model(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, 100)
