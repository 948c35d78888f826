"""minGPT: the shape that the course's ladder trains, on the CPU and by its numbers."""

import pytest
import torch

from helpers.models import MinGPT


def test_the_large_one_has_the_published_number_of_parameters():
    with torch.device("meta"):
        assert sum(one.numel() for one in MinGPT().parameters()) == 708_720_640


@pytest.mark.parametrize("checkpointing", [None, "reentrant", "non-reentrant"])
def test_checkpoints_change_no_gradient(checkpointing):
    torch.manual_seed(0)
    model = MinGPT(2, heads=2, width=16, checkpointing=checkpointing).eval()
    x, y = torch.randint(65, (2, 3, 128))
    logits, loss = model(x, y)
    loss.backward()
    assert logits.shape == (3, 128, 65)
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).item())
    torch.manual_seed(0)
    plain = MinGPT(2, heads=2, width=16).eval()
    plain(x, y)[1].backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_no_token_sees_a_later_one():
    model = MinGPT(2, heads=2, width=16).eval()
    x = torch.zeros(1, 128, dtype=torch.long)
    changed = x.clone()
    changed[0, 64] = 1
    first, second = model(x, x)[0], model(changed, x)[0]
    assert torch.equal(first[:, :64], second[:, :64])
    assert not torch.equal(first[:, 64:], second[:, 64:])


def test_only_weights_of_linear_layers_decay():
    model = MinGPT(1, heads=2, width=16)
    decaying, others = model.groups(0.1)
    assert decaying["weight_decay"] == 0.1
    assert others["weight_decay"] == 0.0
    assert all(one.dim() == 2 for one in decaying["params"])
    assert len(decaying["params"]) == 5  # four in the layer, and the head
    assert len(decaying["params"]) + len(others["params"]) == len(list(model.parameters()))


def test_another_kind_of_checkpoint_is_refused():
    with pytest.raises(ValueError, match="'yes' was given"):
        MinGPT(1, checkpointing="yes")
