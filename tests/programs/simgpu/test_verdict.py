"""The verdict on a run: four outcomes with their exit status, the margin, and the smallest capacity that fits."""

import re

import pytest
import torch

import simgpu
from simgpu.allocator.requests import Requests
from simgpu.allocator.settings import AllocatorSettings
from simgpu.command import main
from simgpu.gpus.specs import spec
from simgpu.report import html, page, verdict
from simgpu.report.sizes import parse, size

MIB = 2**20
CONTEXT = spec("T4").context


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def one_tensor(nbytes: int) -> str:
    return f"import torch\nx = torch.empty({nbytes}, dtype=torch.uint8, device='cuda')\n"


@pytest.mark.parametrize(
    ("to_spare", "outcome", "status", "said"),
    [
        (201 * MIB, "fits", 0, "train.py fits on a simulated T4, with 201 MiB (±100) to spare.\n"),
        (41 * MIB, "undecided", 3, "undecided, too close to call: only 41 MiB are to spare"),
        (-41 * MIB, "undecided", 3, "undecided, too close to call: 41 MiB are missing for the request that failed"),
        (-201 * MIB, "does not fit", 1, "train.py does not fit on a simulated T4: empty at train.py:2 asks for "),
    ],
)
def test_a_margin_decides(script, capsys, to_spare, outcome, status, said):
    memory = 1000 * MIB
    path = script(one_tensor(memory - CONTEXT - to_spare))
    report = simgpu.run(path, gpu="T4", memory=memory)
    assert (report.outcome, report.status) == (outcome, status)
    assert main(["run", "--gpu", "T4", "--memory", str(memory), path]) == status
    assert said in capsys.readouterr().out


FFT = "import torch\ntorch.fft.rfft(torch.ones(2**20, device='cuda'))\n"


def test_memory_that_is_not_modelled_has_an_allowance(script):
    """With a wide margin the run fits; within the allowance it is too close to call."""
    report = simgpu.run(script(FFT), gpu="T4")
    assert (report.outcome, report.status) == ("fits", 0)
    assert "; 1,024 MiB of them are set aside for what is not modelled.\n" in str(report)
    assert f"with the context, nvidia-smi shows at least {size(report.nvidia_smi)}" in str(report)
    assert "±100; it fits if this is 1,124 MiB or more, of which 1,024 MiB are set aside" in str(report)
    close = simgpu.run(script(FFT), gpu="T4", memory="1 GiB")
    assert (close.outcome, close.status, close.completed) == ("undecided", 3, True)
    assert "too close to call: " in str(close) and "(at least: without cuFFT's workspaces)" in str(close)


def test_the_replays_for_the_smallest_capacity_log_nothing(caplog):
    """A program may show what is logged, and these are not its own requests."""

    def program():
        for elements in (2**23, 2**24):
            torch.zeros(elements, device="cuda")

    with caplog.at_level("DEBUG"):
        report = simgpu.run(program, gpu="T4")
    assert report.smallest and report.smallest < report.nvidia_smi
    assert caplog.records == []


def test_the_allowance_grows_with_the_run(script):
    """A tenth of 11 GiB is more than the 1 GiB that a small run has."""
    report = simgpu.run(script(FFT + one_tensor(11 * 2**30)), gpu="T4", memory="15 GiB")
    aside = round(report.reserved * verdict.ALLOWANCE_SHARE)
    assert aside > verdict.ALLOWANCE and report.verdict.reason.startswith(f"{size(aside)} of them")


def test_a_run_that_may_need_less_than_it_shows_is_undecided():
    """ "about" says that the figure is no lower bound."""
    report = simgpu.run(lambda: torch.compile(torch.nn.Linear(8, 8).cuda())(torch.ones(1, 8).cuda()), gpu="T4")
    assert report.unmodeled.startswith("about") and report.outcome == "undecided"
    assert "±100; it is undecided however large this is" in str(report) and "it fits if" not in str(report)


def test_a_lower_bound_that_does_not_fit_does_not_fit(script):
    text = "import torch\ntorch.fft.rfft(torch.ones(2**20, device='cuda'))\n" + one_tensor(2**34)
    assert simgpu.run(script(text), gpu="T4").outcome == "does not fit"


def test_another_error_fails(script):
    assert simgpu.run(script("raise KeyError(1)"), gpu="T4").status == 2


def test_memory_that_runs_out_while_a_model_is_built_is_more_than_one_request(script):
    """The request that fails is small, and the layers that follow are not counted in it."""
    inside = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(1000))
with torch.device("cuda"):
    Net()
"""
    report = simgpu.run(script(inside), gpu="T4", memory="1 GiB")
    assert (report.outcome, report.to_come) == ("does not fit", "the model was not complete")


# --- one margin -------------------------------------------------------------------------------------------


ROW = re.compile(r"^  ([−+=]?) ?([A-Za-z][A-Za-z ,-]*?) +([\d,.]+) MiB", re.MULTILINE)


@pytest.mark.parametrize(("text", "memory"), [("FRAGMENTED", None), ("FFT", None), ("FRAGMENTED", "500 MiB")])
def test_the_other_figures_make_up_the_margin(script, text, memory):
    """In the text, in HTML and in JSON, and whether the run fits or is too close to call."""
    report = simgpu.run(script({"FRAGMENTED": FRAGMENTED, "FFT": FFT}[text]), gpu="T4", memory=memory)
    found = report.verdict
    assert found.spare == sum(found.margin) == report.total_memory - report.smallest
    assert found.margin.context + found.margin.reserved == -report.nvidia_smi
    document = report.document()["verdict"]
    assert document["spare"] == sum(document["margin"].values())
    assert document["uncertainty"] == verdict.CONTEXT_UNCERTAINTY
    assert document["set_aside"] == (verdict.ALLOWANCE if text == "FFT" else 0)
    rows = [
        (sign, round(100 * float(number.replace(",", "")))) for sign, _, number in ROW.findall(page.numbers(report))
    ]
    total, context, reserved, cache, spare, peak = rows
    assert [sign for sign, _ in rows] == ["", "−", "−", "+", "=", ""]
    assert total[1] - context[1] - reserved[1] + cache[1] == pytest.approx(spare[1], abs=2)  # each is rounded
    assert spare[1] == round(100 * found.spare / MIB) and peak[1] == round(100 * report.peak / MIB)
    shown = html.document(report)
    for nbytes in (*map(abs, found.margin), found.spare):
        assert f'<data value="{nbytes}">' in shown
    assert (f"{size(found.spare)} (±100) to spare" in str(report)) == report.fits


def test_a_run_that_does_not_complete_has_no_margin(script):
    report = simgpu.run(script(one_tensor(2**34)), gpu="T4")
    assert (report.verdict.spare, report.verdict.margin) == (None, None)
    assert "To spare" not in str(report) and "  nvidia-smi, at most " in str(report)


# --- the smallest capacity --------------------------------------------------------------------------------


FRAGMENTED = """
import torch
def block(mib):
    return torch.empty(mib * 2**20, dtype=torch.uint8, device="cuda")
for mib in (100, 130, 170):  # each needs a segment of its own, and one is enough at a time
    x = block(mib)
    del x
"""


def test_the_smallest_capacity_is_below_the_reserved_peak_where_the_cache_can_shrink(script):
    report = simgpu.run(script(FRAGMENTED), gpu="T4")
    assert report.reserved == 400 * MIB and report.peak == 170 * MIB
    assert report.smallest == CONTEXT + 170 * MIB + MIB  # to 2 MiB, and the context is odd
    fits = simgpu.run(script(FRAGMENTED), gpu="T4", memory=report.smallest)
    fails = simgpu.run(script(FRAGMENTED), gpu="T4", memory=report.smallest - 2 * MIB)
    assert fits.completed and not fails.completed
    assert f"the smallest capacity found to fit is {report.smallest // MIB} MiB" in str(report)


def test_a_replay_serves_exactly_what_a_run_serves(script):
    text = """
import torch
from torch import nn
net = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(net.parameters())
side = torch.cuda.Stream()
for batch in (512, 700, 300):
    x = torch.randn(batch, 512, device="cuda")
    x.record_stream(side)
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.empty_cache()
"""
    report = simgpu.run(script(text), gpu="T4")
    assert report.smallest is not None
    assert simgpu.run(script(text), gpu="T4", memory=report.smallest).completed
    assert not simgpu.run(script(text), gpu="T4", memory=report.smallest - 2 * MIB).completed


def test_no_smaller_capacity_is_claimed_where_the_requests_cannot_be_replayed(script):
    text = one_tensor(MIB) + "torch.cuda.memory._set_allocator_settings('expandable_segments:True')\n"
    report = simgpu.run(script(text), gpu="T4")
    assert report.smallest is None and "the smallest capacity: the program changes the allocator's settings" in str(
        report
    )


def test_a_record_that_is_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr("simgpu.allocator.requests.LONGEST", 3)
    requests = Requests()
    for _ in range(4):
        requests.malloc(512, 0)
    assert requests.unusable == "the record is longer than 3 requests" and len(requests) == 0
    requests.free(0)
    requests.malloc(512, 0)
    assert len(requests) == 0


def test_a_request_that_failed_may_be_served_by_other_settings():
    requests = Requests()
    for _ in range(20):
        requests.malloc(8 * MIB, 0)  # two to a segment of 20 MiB
    for number in range(0, 20, 2):
        requests.free(number)
    requests.failed(60 * MIB, 0)
    capacity = 220 * MIB
    plain = requests.replay(capacity, 0, AllocatorSettings(), (2, 13))
    expandable = requests.replay(capacity, 0, AllocatorSettings.parse("expandable_segments:True"), (2, 13))
    assert (plain.served, plain.failures) == (True, 1)
    assert (expandable.served, expandable.failures) == (True, 0)


def test_every_outcome_has_a_status():
    outcomes = (verdict.FITS, verdict.DOES_NOT_FIT, verdict.FAILED, verdict.UNDECIDED)
    assert [verdict.STATUS[one] for one in outcomes] == [0, 1, 2, 3]
    assert parse("100 MiB") == verdict.CONTEXT_UNCERTAINTY
