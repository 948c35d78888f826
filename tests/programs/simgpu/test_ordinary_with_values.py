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


def overlaps(boxes, others):
    assert (boxes[:, 2:] >= boxes[:, :2]).all()
    sides = torch.min(boxes[:, None, 2:], others[:, 2:]) - torch.max(boxes[:, None, :2], others[:, :2])
    shared = sides.clamp(min=0).prod(-1)
    areas = [(one[:, 2:] - one[:, :2]).prod(1) for one in (boxes, others)]
    return shared / (areas[0][:, None] + areas[1] - shared)


def detector_trained(device):
    """Anchors matched to boxes, some of them sampled; regions cut by grid_sample; a loss over what is in them."""
    torch.manual_seed(0)
    body, scores, head = nn.Conv2d(3, 8, 8, 8), nn.Conv2d(8, 2, 1), nn.Linear(8 * 9, 3)
    net = nn.ModuleList([body, scores, head]).to(device)
    picture = torch.rand(1, 3, 64, 64).to(device)
    truth, kinds = torch.tensor([[4.0, 4, 30, 28], [20, 30, 60, 62]]).to(device), torch.tensor([1, 2]).to(device)
    optimizer, losses = torch.optim.SGD(net.parameters(), 0.1), []
    at = torch.arange(8, device=device) * 8.0
    y, x = torch.meshgrid(at, at, indexing="ij")
    middles = torch.stack([x, y, x, y], -1).reshape(-1, 1, 4)
    anchors = (middles + torch.tensor([[-12.0, -12, 12, 12], [-16, -16, 24, 24]], device=device)).reshape(-1, 4)
    for _ in range(3):
        features = body(picture).relu()
        objectness = scores(features).permute(0, 2, 3, 1).reshape(-1)
        best, whose = overlaps(truth, anchors).max(0)
        labels = torch.where(best > 0.3, 1.0, 0.0)
        labels[(best > 0.1) & (best <= 0.3)] = -1
        found, none = torch.where(labels == 1)[0], torch.where(labels == 0)[0][:20]
        chosen = torch.cat([found, none])
        loss = F.binary_cross_entropy_with_logits(objectness[chosen], labels[chosen])
        with torch.no_grad():
            top = objectness.topk(20)[1]
            boxes = anchors[top].clamp(0, 64)
            boxes = torch.cat([boxes[torch.where((boxes[:, 2:] - boxes[:, :2]).min(1)[0] > 8)[0]], truth])
        best, whose = overlaps(truth, boxes).max(0)
        wanted = torch.where(best > 0.5, kinds[whose], torch.zeros_like(whose))
        steps = (torch.arange(3, device=device) + 0.5) / 3
        places = boxes[:, None, :2] + (boxes[:, None, 2:] - boxes[:, None, :2]) * steps[:, None]
        grid = torch.stack([places[:, None, :, 0].expand(-1, 3, -1), places[:, :, None, 1].expand(-1, -1, 3)], -1)
        cut = F.grid_sample(features.expand(len(boxes), -1, -1, -1), grid / 32 - 1, align_corners=False)
        loss = loss + F.cross_entropy(head(cut.flatten(1)), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append([loss.item(), len(found), len(boxes), int((wanted > 0).sum())])
    return losses


def matched(device):
    """DETR: each box has one query, so that the sum of costs is least; the host decides (scipy's, or all orders)."""
    from itertools import permutations

    torch.manual_seed(0)
    logits, queries = torch.randn(5, 4).to(device).requires_grad_(), torch.rand(5, 4).to(device).requires_grad_()
    boxes, kinds = torch.rand(3, 4).to(device), torch.tensor([0, 2, 1]).to(device)
    with torch.no_grad():
        cost = 5 * torch.cdist(queries, boxes, p=1) - logits.softmax(-1)[:, kinds]
    costs = cost.cpu().numpy()
    try:
        from scipy.optimize import linear_sum_assignment

        rows, columns = linear_sum_assignment(costs)
    except ImportError:
        columns = [0, 1, 2]
        rows = min(permutations(range(5), 3), key=lambda rows: costs[list(rows), columns].sum())
        rows, columns = zip(*sorted(zip(rows, columns, strict=True)), strict=True)
    rows, columns = torch.as_tensor(list(rows)), torch.as_tensor(list(columns))
    wanted = torch.full((5,), 3, dtype=torch.int64, device=device)
    wanted[rows] = kinds[columns]
    loss = F.cross_entropy(logits, wanted) + F.l1_loss(queries[rows], boxes[columns])
    loss.backward()
    return [rows.tolist(), columns.tolist(), loss, logits.grad, queries.grad]


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
    *(detector_trained, matched),
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
