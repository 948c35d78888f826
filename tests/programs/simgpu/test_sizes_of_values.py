"""Which values decide sizes, in a run without values: each line is told apart from those that decide nothing."""

import copy
import json
import math
import pickle
import textwrap

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu import placeholder_values, simulated_gpu
from simgpu.placeholder_values import PlaceholderLine, PlaceholderValues
from simgpu.report import placeholder_values as section


@pytest.fixture
def run(tmp_path):
    """Runs the text of a script on a simulated T4 and returns its report."""

    def run(text: str, **options):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return simgpu.run(path, gpu="T4", **options)

    return run


def lines(found) -> list[int]:
    return sorted({int(place.rpartition(":")[2]) for _, place, *_ in found})


BEFORE = "import math, random, torch\nimport torch.nn.functional as F\nx = torch.randn(8, 8, device='cuda')\n"
DECIDE = [
    "x.nonzero()",
    "x[x > 0]",
    "x[x[:, 0] > 0].mean()",
    "x.masked_select(x > 0)",
    "torch.unique(x)",
    "torch.unique_consecutive(x)",
    "torch.bincount(x.long().flatten().abs())",
    "torch.argwhere(x > 0)",
    "torch.where(x > 0)",
    "x.repeat_interleave(x[0].long().abs(), 0)",
    "F.one_hot(x.long().abs())",
    "torch.zeros((x > 0).sum().item(), device='cuda')",
    "n = (x > 0).sum().item(); m = 2 * n + 1; torch.zeros(m, 3, device='cuda')",
    "x[: (x[:, 0] > 0).sum()]",
    "x[: (x[:, 0] > 0).sum().item()]",
    "x.narrow(0, 0, x[0].argmax().item())",
    "x.topk(max(1, x[0].argmax().item()))",
    "torch.arange(x[0].argmax().item())",
    "torch.arange(x[0].argmax(), device='cuda')",
    "x.split([x[0].argmax().item(), 8 - x[0].argmax().item()])",
    "F.pad(x, (0, x[0].argmax().item()))",
    "x.expand(x[0].argmax().item(), 8, 8)",
    "torch.nn.Linear(x[0].argmax().item() + 1, 4)",
    "k = int((x > 0).sum())\nz = [x] * k",
    "k = int(x.abs().sum())\ny = torch.zeros(k + 1)",
    "for _ in range((x > 0).sum().item()): pass",
    "for _ in range((x > 0).sum()): pass",
    "n = (x > 0).sum().item()\nfor _ in range(n): pass",
    "k = math.ceil(x.mean().item() * 3); x[:k]",
    "k = int(x.mean().item() * 3); x[:k]",
    "a, b = x[0].long().tolist()[:2]; x[a : b + 8]",
    "ends = x[0].long().cumsum(0).tolist(); [x[:end] for end in ends]",
    "(x > 0).cpu().nonzero().cuda()",
    "F.ctc_loss(torch.randn(8, 2, 4, device='cuda').log_softmax(2), torch.ones(2, 3, dtype=torch.long, device='cuda'),"
    " x[0, :2].long(), x[0, :2].long())",
    "torch.nn.utils.rnn.pack_padded_sequence(x[None], x[0, :1].long().cpu(), batch_first=True)",
]
DO_NOT = [
    "print(x.mean().item())",
    "print(f'{x.mean():.3f} {x.mean().item():.3f}')",
    "total = 0.0; total += x.mean().item() * 8; print(total / 3)",
    "correct = 0\ncorrect += (x.argmax(1) == 2).sum().item()\nprint(correct / 8)",
    "correct = int((x.argmax(1) == 2).sum())\nprint('%d of %d: %.1f %%' % (correct, 8, 100 * correct / 8))",
    "def accuracy(x): return int((x > 0).sum()) / (int((x > 1).sum()) + 1)\nprint(accuracy(x))",
    "losses = []; losses.append(x.mean().item()); print(sum(losses) / len(losses))",
    "norm = torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(x)], 1.0); print(norm.item())",
    "best = 9.0; best = min(best, x.mean().item())",
    "if x.mean().item() > 3: print('large')",
    "if (x > 3).any(): print('large')",
    "y = x * x.mean().item()",
    "y = x.add(x, alpha=x[0].argmax().item())",
    "y = torch.full((3,), x[0].argmax().item(), device='cuda')",
    "y = torch.tensor([x.mean().item(), x.sum().item()], device='cuda')",
    "y = x[x[0].argmax().item()]",
    "y = x[x[0].argmax()]",
    "y = [x, x, x][x[0].long().argmax().item()]",
    "y = [x, x, x][x[0].argmax()]",
    "x[: x[0].argmax().item()] = 0",
    "y = torch.where(x > 0, x, 0.0)",
    "y = x.masked_fill(x > 0, 0.0)",
    "x[x > 0] = 0.0",
    "scores = x.softmax(-1).cpu().numpy(); print(scores.mean())",
    "predictions = x.argmax(1).cpu(); print((predictions[predictions != 3] == 2).sum().item())",
    "labels = torch.tensor([1, -100, 2], device='cuda'); y = x[:3][labels != -100]",
    "y = F.one_hot(x.long(), 10)",
    "y = F.cross_entropy(x, x.argmax(1))",
    "lr = x.mean().item(); torch.optim.SGD([torch.nn.Parameter(x)], lr=lr + 0.1)",
]


@pytest.mark.parametrize("text", DECIDE)
def test_a_value_that_decides_a_size_is_told_apart(run, text):
    report = run(BEFORE + text)
    assert report.sizes and min(lines(report.sizes)) >= 4, report.ended
    assert report.ended == "" or "0" in report.ended  # some of them cannot be done with a size of 0


@pytest.mark.parametrize("text", DO_NOT)
def test_a_value_that_decides_none_is_not(run, text):
    report = run(BEFORE + text)
    assert (report.ended, report.sizes) == ("", ())


def test_with_values_nothing_is_made_up(run):
    report = run(BEFORE + "x[x > 0].mean().item()\ntorch.zeros((x > 0).sum().item())", values=True)
    assert (report.ended, report.sizes, report.placeholder_values) == ("", (), ())


def test_the_direction_of_a_bound(run):
    """With 0 for n, x[:n] is as small as it can be, and x[n:] as large."""
    report = run(BEFORE + "n = (x[:, 0] > 0).sum().item()\nx[:n]\nm = (x[:, 0] > 0).sum().item()\nx[m:]\n")
    assert {int(place.rpartition(":")[2]): at_least for _, place, _, at_least in report.sizes} == {4: True, 6: False}
    assert "may also be smaller" in section.sentence(report.sizes)


def test_branches_are_a_class_of_their_own(run):
    report = run(BEFORE + "if x.mean().item() > 3: pass\nwhile (x > 3).any(): pass\nprint(x.mean().item())")
    assert (lines(report.branches), report.sizes) == ([4, 5], ())


def test_what_the_page_says(run):
    report = run(BEFORE + "y = x[x > 0]\nif x.mean().item() > 3: pass\nprint(x.mean().item())\nx.nonzero()\n")
    assert report.status == 3 and "undecided, sizes at 2 lines depend on values (" in str(report)
    assert "use --values" in report.bounds[0] and "nvidia-smi shows about" in str(report)
    headings = [line.partition(" (")[0] for line in section.section(report).splitlines() if not line.startswith(" ")]
    assert headings == [
        "Sizes that depend on values",
        "Branches that were taken as if the value was 0",
        "Values that were answered as 0",
    ]


@pytest.mark.parametrize(
    "end",
    [
        "import sys; sys.exit(0 if loss.item() > 1 else 3)",
        "assert loss.item() > 1",
        "{1.5: 'a'}[loss.item()]",
        "if loss.item() == 0: raise RuntimeError('diverged')",
    ],
)
def test_a_program_that_fails_after_a_stand_in_says_so(run, end):
    report = run(BEFORE + f"loss = x.mean()\n{end}")
    assert report.status == 2 and "--values computes them" in report.ended


def test_a_program_that_fails_without_one_does_not(run):
    assert "--values" not in run(BEFORE + "raise SystemExit(3)").ended


# The numbers


def number(value):
    line = PlaceholderLine("item()", "train.py", 1)
    return placeholder_values.depending(value, (line,)), line


@pytest.mark.parametrize(
    "loss",
    [
        "F.cross_entropy(chosen, torch.zeros(len(chosen), device='cuda', dtype=torch.long))",
        "chosen.mean()",
        "chosen.sum() / chosen.numel()",
        "chosen.new_zeros(1).sum() + F.mse_loss(chosen, chosen)",
    ],
)
def test_a_loss_of_nothing_is_not_nan(run, loss):
    """The true selection is not empty, so a script that stops at a NaN must not stop here."""
    end = "if not math.isfinite(loss.item()) or not torch.isfinite(loss):\n    raise SystemExit(1)"
    report = run(f"{BEFORE}chosen = x[x[:, 0] > 0]\nloss = {loss}\n{end}")
    assert report.ending == "completed" and report.status == 3 and lines(report.sizes) == [4]


def test_a_mean_of_an_empty_tensor_is_nan_where_no_size_is_unknown(run):
    report = run("import math, torch\nassert math.isnan(torch.zeros(0, device='cuda').mean().item())")
    assert report.ending == "completed" and not report.placeholder_values


@given(st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_number_is_as_the_plain_one(value):
    made, _ = number(value)
    assert isinstance(made, type(value)) and type(made) is not type(value)
    assert (str(made), repr(made), f"{made:.3f}") == (str(value), repr(value), f"{value:.3f}")
    assert made == value and hash(made) == hash(value) and {made: 1}[value] == 1
    assert json.dumps([made]) == json.dumps([value]) and json.dumps([made], indent=1) == json.dumps([value], indent=1)
    for other in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert type(other) is type(value) and other == value
    assert numpy.asarray(made).dtype == numpy.asarray(value).dtype and numpy.asarray(made) == value
    assert torch.tensor(made).dtype == torch.tensor(value).dtype
    assert type(int(made)) is int and type(float(made)) is float and float(made) == float(value)


_TWO = [
    ("+", lambda a, b: a + b),
    ("-", lambda a, b: a - b),
    ("*", lambda a, b: a * b),
    ("/", lambda a, b: a / b),
    ("//", lambda a, b: a // b),
    ("%", lambda a, b: a % b),
    ("divmod", divmod),
]


@given(st.integers(-99, 99) | st.floats(-99, 99), st.integers(1, 9) | st.floats(1, 9), st.sampled_from(_TWO))
def test_arithmetic_is_the_plain_one_and_keeps_the_line(value, other, two):
    made, line = number(value)
    _, compute = two
    found, wanted = compute(made, other), compute(value, other)
    assert found == wanted
    for one in found if isinstance(found, tuple) else (found,):
        assert placeholder_values.of(one) == (line,)
    if value and (isinstance(value, float) or isinstance(other, int)):
        back = compute(other, made)
        assert back == compute(other, value)
        assert all(map(placeholder_values.of, back if isinstance(back, tuple) else (back,)))


@given(st.floats(-99, 99))
def test_rounding_keeps_the_line(value):
    made, line = number(value)
    for do in (math.floor, math.ceil, math.trunc, round, abs, lambda one: round(one, 1), lambda one: -one):
        assert do(made) == do(value) and placeholder_values.of(do(made)) == (line,)


def test_records_are_counted_by_line():
    with simulated_gpu("T4") as gpu:
        del gpu
        found = PlaceholderValues()
        for _ in range(3):
            found.note("item()")
        found.note("bool()")
    assert [(one.what, one.count) for one in found] == [("item()", 3), ("bool()", 1)]
