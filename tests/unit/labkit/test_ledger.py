"""The ledger: stages, comparisons, running a cell twice, exceptions, and what it refuses."""

import functools

import pytest
import torch

import labkit
from helpers.models import ThreeLinear
from labkit import formulas, published
from labkit.ledger import Ledger
from labkit.live_tensors import DirtyBaseline
from labkit.units import MiB
from tests.pinned import of_pinned_torch


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("A100-80GB") as gpu:
        yield gpu


def train(ledger):
    with ledger("parameters"):
        model = ThreeLinear().cuda()
    with ledger("input"):
        x = torch.zeros(10_240, 1024, device="cuda")
    with ledger("forward"):
        y = model(x)
    with ledger("forward again"):
        y = model(x)
    with ledger("loss"):
        loss = y.sum()
    with ledger("backward"):
        loss.backward()
    return model, x, y, loss


@of_pinned_torch
def test_stages_of_the_three_linear_model(capsys):
    ledger = Ledger()
    kept = train(ledger)
    figures = {
        name: published.find("three-linear", quantity, gpu="A100").mib
        for name, quantity in (("forward", "forward adds"), ("backward", "after backward"))
    }
    assert ledger["parameters"].added == formulas.parameters(kept[0])
    assert ledger["input"].added == 40 * MiB
    assert ledger["forward"].added == float(figures["forward"]) * MiB
    assert ledger["forward again"].added == 0
    assert ledger["loss"].added == 512
    assert ledger["backward"].after == float(figures["backward"]) * MiB
    peak = published.find("three-linear", "peak", gpu="A100")
    assert peak.verdict(ledger["backward"].peak) == "equal"
    # The second forward pass made its outputs while those of the first were alive.
    assert ledger.peak == ledger["forward again"].peak > ledger["backward"].peak
    assert ledger["backward"].nvidia_smi > ledger["backward"].reserved

    ledger.compare(forward=4 * 10_240 * 4096)
    ledger.compare({"forward again": 0})
    ledger.compare(loss=0, recorded="0.0005", why="a scalar takes a block")
    assert capsys.readouterr().out.splitlines() == [
        "forward: predicted 160.000 MiB, measured 168.125 MiB, +8.125 MiB",
        "forward again: predicted 0.000 MiB, measured 0.000 MiB, equal",
        "loss: predicted 0.000 MiB, measured 512 B, +512 B; recorded 0.000 MiB, equal to 4 decimals",
    ]
    rows = ledger.comparison()
    assert list(rows["measured - predicted"]) == ["+8.125 MiB", "equal", "+512 B"]
    assert rows.loc["loss", "why"] == "a scalar takes a block"


def test_table_has_units_and_says_simulated():
    ledger = Ledger()
    with ledger("x"):
        x = torch.zeros(1024, 1024, device="cuda")
    table = ledger.table()
    assert table.index.name == table.attrs["gpu"] == "simulated A100-80GB"
    assert list(table.columns) == [
        f"{counter} (MiB)" for counter in ("before", "added", "peak", "after", "reserved", "nvidia-smi")
    ]
    assert table.loc["x", "added (MiB)"] == x.nbytes / MiB == 4
    assert table.loc["x", "reserved (MiB)"] == 20


def test_the_peak_between_stages_counts():
    ledger = Ledger()
    with ledger("first"):
        pass
    torch.zeros(3 * MiB, device="cuda")
    with ledger("second"):
        pass
    assert ledger["second"].peak == 0
    assert ledger.peak == 12 * MiB


def test_a_stage_run_again_replaces_its_row_and_those_after_it(capsys):
    ledger = Ledger()
    with ledger("a"):
        a = torch.zeros(MiB, device="cuda")
    with ledger("b"):
        b = torch.zeros(2 * MiB, device="cuda")
    ledger.compare(b=8 * MiB)
    capsys.readouterr()
    del b
    with ledger("b"):
        b = torch.zeros(2 * MiB, device="cuda")
    assert capsys.readouterr().out == "'b' is measured again; its row and those after it go: b\n"
    assert ledger["b"].added == 8 * MiB
    assert ledger.comparison().empty
    with ledger("a"):
        a = torch.zeros(MiB, device="cuda")
    out = capsys.readouterr().out
    assert "those after it go: a, b" in out
    assert "begins with 12.0 MiB allocated, the first time with 0.0 MiB" in out
    assert list(ledger.stages) == ["a"]
    del a, b


def test_a_stage_run_again_takes_its_workspace_again(capsys):
    ledger = Ledger()
    model, x = torch.nn.Linear(1024, 1024).cuda(), torch.zeros(1024, 1024, device="cuda")
    with ledger("forward"):
        y = model(x)
    first = ledger["forward"]
    y = None
    with ledger("forward"):
        y = model(x)
    assert ledger["forward"] == first
    assert "begins with" not in capsys.readouterr().out
    assert y is not None


def test_a_ledgers_timeline_is_of_its_own_stages_whatever_comes_later():
    ledger = Ledger(history=True)
    with ledger("x"):
        torch.zeros(MiB, device="cuda")
    before = repr(ledger.timeline())
    other = Ledger(history=True)
    with other("y"):
        torch.zeros(64 * MiB, device="cuda")
    assert repr(ledger.timeline()) == before


def test_an_exception_passes_and_its_stage_is_kept():
    ledger = Ledger()
    with pytest.raises(torch.cuda.OutOfMemoryError), ledger("too much"):
        torch.empty(2**40, dtype=torch.uint8, device="cuda")
    assert ledger["too much"].failed.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 GiB")
    assert ledger.table().loc["too much", "failed"] == "OutOfMemoryError"
    with ledger("after"):
        x = torch.zeros(4, device="cuda")
    assert ledger["after"].added == 512
    assert x.is_cuda


def test_stages_are_not_nested():
    ledger = Ledger()
    nested = pytest.raises(RuntimeError, match='stage "inner" begins inside stage "outer"')
    with nested, ledger("outer"), ledger("inner"):
        pass
    with ledger("next"):
        pass
    assert list(ledger.stages) == ["outer", "next"]


def test_errors_say_what_there_is():
    ledger = Ledger()
    with pytest.raises(KeyError, match="no stage 'forward'; measured are none yet"):
        ledger["forward"]
    with ledger("a"):
        pass
    with pytest.raises(KeyError, match=r"measured are \['a'\]"):
        ledger.compare(forward=1)
    with pytest.raises(ValueError, match="of='peaks' was given"):
        ledger.compare(a=1, of="peaks")
    with pytest.raises(ValueError, match="one alone with recorded="):
        ledger.compare(a=1, b=2, recorded="1")
    with pytest.raises(ValueError, match="wanted a prediction"):
        ledger.compare()
    with pytest.raises(RuntimeError, match="history=True"):
        ledger.timeline()


class Holder:
    """Not a container that names are searched in."""


def test_a_dirty_baseline_is_refused_and_named():
    model = torch.nn.Linear(1024, 1024, bias=False).cuda()
    x = torch.zeros(256, 1024, device="cuda")
    batches = {"train": [x[:10], torch.zeros(100, device="cuda")]}
    y = model(x).relu()
    holder = Holder()
    holder.hidden = torch.zeros(MiB // 8, device="cuda")
    bound = functools.partial(print, torch.zeros(1000, device="cuda"))
    with pytest.raises(DirtyBaseline) as refused:
        Ledger()
    text = str(refused.value)
    assert "  model.weight  [1024, 1024] float32  4.0 MiB" in text
    assert "  x, batches['train'][0]  [256, 1024] float32  1.0 MiB" in text  # two tensors, one storage
    assert "  y  [256, 1024] float32  1.0 MiB" in text
    assert "  batches['train'][1]  [100] float32  512 B" in text
    assert "  inside holder  [131072] float32  0.5 MiB" in text
    assert "  inside bound  [1000] float32  4,096 B" in text
    # What relu keeps is y itself, so the rest is the workspace of model(x).
    assert "and 8.125 MiB in no Python object: the workspaces of cuBLAS, what autograd saved" in text
    allocated = torch.cuda.memory_allocated()
    assert f"Ledger(allow={allocated}) accepts them" in text
    assert Ledger(allow=allocated).baseline == allocated - 8_519_680  # the workspace has been given back

    del model, x, batches, y, holder, bound, refused
    assert Ledger().baseline == 0
    assert torch.cuda.memory_reserved() == 0


def test_a_refusal_changes_nothing_that_is_measured_later():
    model = torch.nn.Linear(1024, 1024).cuda()
    x = torch.zeros(1024, 1024, device="cuda")
    first = model(x)
    first = None
    before = torch.cuda.memory_stats()
    with pytest.raises(DirtyBaseline):
        Ledger()
    after = torch.cuda.memory_stats()
    assert after == before
    again = model(x)
    assert torch.cuda.memory_allocated() - before["allocated_bytes.all.current"] == again.nbytes  # no second workspace
    assert first is None


def test_what_only_an_optimizer_a_closure_or_an_object_holds_is_named_by_its_variable():
    model = torch.nn.Linear(64, 64, bias=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 64, device="cuda")).sum().backward()
    optimizer.step()
    model = None
    deep = Holder()
    deep.inner = Holder()
    deep.inner.kept = [torch.zeros(200, device="cuda")]

    def make():
        hidden = torch.zeros(300, device="cuda")
        return lambda: hidden

    callback = make()
    with pytest.raises(DirtyBaseline) as refused:
        Ledger()
    text = str(refused.value)
    assert "  optimizer.param_groups[0]['params'][0]  [64, 64]" in text
    assert "  optimizer.param_groups[0]['params'][0].grad  [64, 64]" in text
    assert "  optimizer.state[0]['exp_avg']  [64, 64]" in text
    assert "  inside deep  [200] float32  1,024 B" in text
    assert "  inside callback  [300] float32  1,536 B" in text
    assert "held by" not in text
    assert model is None and callable(callback)


def test_a_refusal_for_what_autograd_alone_holds_says_so():
    x = torch.zeros(256, 256, device="cuda", requires_grad=True)
    allow = x.nbytes + 512
    loss = (x.exp() * 2).sum()
    with pytest.raises(DirtyBaseline, match=r"held by autograd or other C\+\+ code\)  \[256, 256\]"):
        Ledger(allow)
    assert loss.requires_grad


def test_what_an_exception_keeps_alive_is_named(monkeypatch):
    def fails():
        activations = torch.zeros(MiB, device="cuda")
        raise ValueError(len(activations))

    with pytest.raises(ValueError) as raised:
        fails()
    monkeypatch.setattr("sys.last_value", raised.value, raising=False)
    with pytest.raises(DirtyBaseline, match=r"the last exception, in fails\(\): activations  \[1048576\]"):
        Ledger()


def test_the_ledger_takes_no_memory():
    torch.cuda.init()
    before = torch.cuda.memory_stats()
    ledger = Ledger(history=True)
    for name in "ab":
        with ledger(name):
            pass
    ledger.table()
    after = torch.cuda.memory_stats()
    for key in ("allocation.all.allocated", "reserved_bytes.all.current", "allocated_bytes.all.allocated"):
        assert after[key] == before[key]


def test_the_timeline_ends_at_the_counters_and_shows_the_peak():
    ledger = Ledger(history=True)
    kept = train(ledger)
    axes = ledger.timeline().axes[0]
    allocated, reserved, peak = (line.get_ydata() for line in axes.lines)
    assert peak[0] * MiB == ledger.peak
    assert max(allocated) * MiB == ledger.peak
    assert allocated[-1] * MiB == torch.cuda.memory_allocated()
    assert reserved[-1] * MiB == torch.cuda.memory_reserved()
    assert [text.get_text().strip() for text in axes.texts] == list(ledger.stages)
    assert kept


def test_a_traced_tensor_that_lives_does_not_disturb():
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with labkit.simulated_gpu("H100"):
        with FunctionalTensorMode():
            traced = FunctionalTensor.to_functional(torch.zeros(4))
        assert isinstance(traced, FunctionalTensor)
        kept = torch.zeros(1024, device="cuda")
        with pytest.raises(DirtyBaseline, match="kept"):
            Ledger()
        assert kept.is_cuda


def test_a_ledger_keeps_its_peak_when_another_one_is_made():
    """The counters speak of the newest ledger; an older one has its own peak, whatever comes after it."""
    with labkit.simulated_gpu("A100-80GB"):
        first = Ledger()
        with first("large"):
            torch.empty(12 * MiB, dtype=torch.uint8, device="cuda")
        second = Ledger()
        torch.empty(40 * MiB, dtype=torch.uint8, device="cuda")  # after the last stage of `first`, in none of `second`
        assert first.peak == 12 * MiB
        assert second.peak == 40 * MiB
        with first("again"):
            torch.empty(2 * MiB, dtype=torch.uint8, device="cuda")
        torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
        assert (first.peak, second.peak) == (64 * MiB, 40 * MiB)
    assert first.peak == 12 * MiB  # of its stages: the GPU is gone, and what its counter said after them


def test_a_ledger_of_another_gpu_does_not_read_this_ones_counters():
    with labkit.simulated_gpu("A100-80GB"):
        outer = Ledger()
        with outer("small"):
            torch.empty(2 * MiB, dtype=torch.uint8, device="cuda")
        with labkit.simulated_gpu("T4"):
            torch.empty(12 * MiB, dtype=torch.uint8, device="cuda")
            assert outer.peak == 2 * MiB
