"""What people write and what decides by values: each runs with values=True, and gives what it gives on the CPU."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import labkit


def near(x):
    """Whether a tensor, or what is made of some, can be compared: all of it on the host."""
    if isinstance(x, torch.Tensor):
        return x.detach().cpu()
    return [near(one) for one in x] if isinstance(x, (list, tuple)) else x


def model_of(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)


def data(device):
    torch.manual_seed(1)
    return torch.randn(12, 8).to(device), torch.randint(0, 3, (12,)).to(device)


def accuracy(device):
    model, (x, y) = model_of(device), data(device)
    correct = (model(x).argmax(1) == y).sum().item()
    return [correct, model(x).argmax(1).cpu().numpy().tolist(), y.tolist()]


def clipped_where_it_is_large(device):
    model, (x, y) = model_of(device), data(device)
    F.cross_entropy(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    if norm > 0.1:
        for one in model.parameters():
            one.grad.mul_(0.1)
    return [norm, [one.grad for one in model.parameters()]]


def early_stopping(device):
    model, (x, y) = model_of(device), data(device)
    optimizer, best, bad, losses = torch.optim.SGD(model.parameters(), lr=2.0), float("inf"), 0, []
    while bad < 2 and len(losses) < 12:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        best, bad = (losses[-1], 0) if losses[-1] < best - 0.05 else (best, bad + 1)
    return losses


def lbfgs(device):
    model, (x, y) = model_of(device), data(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure), F.cross_entropy(model(x), y)]


def learning_rate_of_a_tensor(device):
    model, (x, y) = model_of(device), data(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01, device=device), capturable=device == "cuda")
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    return list(model.parameters())


def masks_of_an_encoder(device):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    x = torch.randn(3, 5, 16).to(device)
    causal = nn.Transformer.generate_square_subsequent_mask(5).to(device)
    padding = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]], dtype=torch.bool).to(device)
    return [
        encoder(x, mask=causal, is_causal=True),
        encoder(x, mask=causal == 0),
        encoder(x, src_key_padding_mask=padding),
    ]


def indices_and_masks(device):
    x, y = data(device)
    mask = x > 0.5
    return [
        x[mask],
        x[mask.any(1)],
        mask.nonzero(),
        torch.masked_select(x, mask),
        x[[0, -1]],
        x[:, [1, 2]],
        torch.unique(y),
    ]


def connectionist(device):
    torch.manual_seed(0)
    scores, targets = torch.randn(20, 2, 6).to(device).log_softmax(2), torch.randint(1, 6, (2, 5)).to(device)
    return F.ctc_loss(scores, targets, torch.tensor([20, 18]), torch.tensor([5, 4]))


def masked_spectrum(device):
    """SpecAugment, as transformers' speech models do it: spans drawn on the host, where a mask counts frames."""
    torch.manual_seed(0)
    hidden, frames = torch.randn(2, 10, 4).to(device), torch.tensor([10, 7]).to(device)
    mask = torch.arange(10, device=device)[None] < frames[:, None]
    spans = torch.zeros(2, 10, dtype=torch.bool)
    for row, length in enumerate(mask.sum(-1).tolist()):
        spans[row, : max(1, length // 4)] = True
    hidden[spans.to(device)] = torch.ones(4, device=device)
    return hidden


def suppressed(device):
    """Detection's last step: boxes above a score, greedily, until none is left."""
    torch.manual_seed(0)
    corners, scores = torch.rand(20, 2).to(device), torch.rand(20).to(device)
    boxes, kept = torch.cat([corners, corners + 0.3], 1), []
    order = scores.argsort(descending=True)
    while order.numel() > 0:
        first, rest = order[0], order[1:]
        kept.append(first.item())
        low = torch.maximum(boxes[first, :2], boxes[rest, :2])
        sides = (torch.minimum(boxes[first, 2:], boxes[rest, 2:]) - low).clamp(min=0)
        order = rest[sides.prod(1) / (2 * 0.09 - sides.prod(1)) < 0.3]
    return kept


def saved_and_loaded(device):
    import io

    model, (x, _) = model_of(device), data(device)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = model_of(device)
    nn.init.zeros_(other[0].weight)
    other.load_state_dict(torch.load(file, map_location=device))
    return [other(x), copy.deepcopy(other)(x)]


CASES = (
    *(accuracy, clipped_where_it_is_large, early_stopping, lbfgs, learning_rate_of_a_tensor, masks_of_an_encoder),
    *(indices_and_masks, connectionist, masked_spectrum, suppressed, saved_and_loaded),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_it_gives_what_it_gives_on_the_cpu(case):
    wanted = near(case("cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with labkit.simulated_gpu("T4", values=True):
            found = near(case("cuda"))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=str)
def test_a_decoder_generates(how):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 50, "n_positions": 32}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).eval()
    prompt = torch.tensor([[1, 5, 6], [1, 7, 8]])

    def generated(device):
        torch.manual_seed(3)
        moved = copy.deepcopy(model).to(device)
        return moved.generate(prompt.to(device), max_new_tokens=6, pad_token_id=0, **how).cpu()

    wanted = generated("cpu")
    with labkit.simulated_gpu("T4", values=True):
        found = generated("cuda")
    assert found.shape == wanted.shape or "do_sample" in how
    assert found.equal(wanted) or "do_sample" in how  # another generator draws
