"""What the page says about memory beyond its sizes: public questions as small programs, and the page's answers."""

import pytest
import torch

import simgpu
from simgpu.dispatch import costs
from simgpu.distributed.kinds import kind
from simgpu.report.findings import LOSS, Facts, findings
from simgpu.report.owners import ACTIVATIONS, DATA, GRADIENTS, PARAMETERS, TEMPORARIES, WORKSPACES
from simgpu.report.report import Line

MIB = 2**20


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a script on a simulated GPU and gives the report."""
    monkeypatch.chdir(tmp_path)

    def run(text, gpu="T4", **options):
        path = tmp_path / "train.py"
        path.write_text(
            "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n" + text, encoding="utf-8"
        )
        return simgpu.run(path, gpu=gpu, **options)

    return run


def named(report) -> dict:
    return {one.name: one for one in report.findings}


# --- the page is right -----------------------------------------------------------------------------------


def test_after_a_caught_error_the_peak_is_the_peak(run):
    report = run("""
size = 2**34
while True:
    try:
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        break
    except torch.OutOfMemoryError:
        size //= 2
y = torch.empty(2**20, dtype=torch.uint8, device="cuda")
""")
    assert report.completed and report.caught == 1 and report.failure is None
    assert report.at.asked == MIB and report.peak == 2**33 + MIB
    assert sum(report.parts.values()) == report.reserved


FINDER = """
def find(function, size=64):
    while True:
        if size == 0:
            raise RuntimeError("No executable batch size found, reached zero.")
        try:
            return function(size)
        except Exception as error:
            if "CUDA out of memory" not in str(error):
                raise
            torch.cuda.empty_cache()
            size //= 2
"""


def test_an_error_raised_in_the_place_of_an_out_of_memory_error(run):
    report = run(FINDER + "find(lambda n: torch.empty(n * 2**35, dtype=torch.uint8, device='cuda'))\n")
    assert (report.outcome, report.status, report.caught) == ("does not fit", 1, 6)
    assert "The program ended with RuntimeError: No executable batch size found" in str(report)


@pytest.mark.parametrize(
    "bug",
    [
        "{}['x']",  # not raised by a statement
        "y = torch.ones(4, device='cuda')\nraise ValueError('no')",  # an allocation succeeded
        "def later():\n    raise ValueError('no')\nlater()",  # nothing that ran when memory ran out
    ],
)
def test_a_bug_that_comes_later_is_not_called_memory(run, bug):
    report = run(f"""
try:
    torch.empty(2**40, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
{bug}
""")
    assert (report.outcome, report.status) == ("failed", 2)


@pytest.mark.parametrize("around", ["with torch.no_grad():", "if True:"])
def test_without_autograd_nothing_is_kept_for_backward(run, around):
    report = run(f"""
net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).cuda().requires_grad_(False)
kept = [torch.randn(65536, 2048, device="cuda")]
{around}
    for _ in range(100):
        kept.append(net(kept[-1]))
""")
    assert report.status == 1
    assert ACTIVATIONS not in report.parts and report.parts[TEMPORARIES] > 10 * 2**30
    assert ACTIVATIONS not in named(report)


def test_with_autograd_what_was_recorded_is(run):
    report = run("""
net = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.Tanh()) for _ in range(100)]).cuda()
net(torch.randn(65536, 2048, device="cuda"))
""")
    assert report.status == 1 and report.parts[ACTIVATIONS] > 10 * 2**30
    assert report.to_come == "the forward pass was not complete"


def test_gradients_of_a_model_that_is_local_to_a_function(run):
    report = run("""
def body():
    net = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)).cuda()
    net(torch.randn(8, 1024, device="cuda")).sum().backward()
    x = torch.empty(2**26, device="cuda")
body()
""")
    weights = 2 * (1024 * 1024 + 1024) * 4
    assert report.parts[PARAMETERS] == report.parts[GRADIENTS] == weights


def test_what_the_program_makes_itself_is_an_input(run):
    report = run("x = torch.randn(2**20, device='cuda')\ny = torch.empty(2**20, device='cuda')\nz = x + y\n")
    assert report.parts[DATA] == 2 * 2**22 and report.parts[TEMPORARIES] == 2**22


def test_what_a_convolution_makes_is_no_input(run):
    """PyTorch makes it with `empty`, and the program's own innermost line may be in no method of a module."""
    report = run("""
net = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)).cuda()
x = torch.randn(4, 8, 256, 256, device="cuda")
net(x).square().sum().backward()
""")
    track = report.timeline
    made = [kind for kind in track.kinds if track.names[kind[2]].startswith("ConvolutionBackward0 (empty")]
    assert made and all(track.names[kind[1]] != DATA for kind in made)
    assert sum(kind[0] for kind in track.kinds if track.names[kind[1]] == DATA) == 4 * 8 * 256 * 256 * 4


def test_a_contiguous_copy_inside_an_operator_is_a_temporary(run):
    report = run("""
x = torch.randn(64, 256, 32, 32, device="cuda").transpose(2, 3)
with torch.no_grad():
    F.group_norm(x, 8)
""")
    copies = [one for one in report.lines if "contiguous copy" in one.operator]
    assert all(one.part == TEMPORARIES for one in copies)
    assert report.parts.get(WORKSPACES, 0) < MIB


@pytest.mark.parametrize(
    ("text", "said"),
    [("import no_such_module", False), ("x = 1", False), ("x = torch.ones(4, device='cuda')\n{}['x']", True)],
)
def test_nothing_is_called_compared_that_did_not_run(run, text, said):
    page = str(run(text))
    assert ("nothing: each operator that ran until the error was compared" in page) == said
    assert ("Not modelled" in page) == said


def test_a_compiled_function_that_is_never_called_changes_nothing(run):
    unused = "@torch.compile\ndef f(x):\n    return x * 2\ng = torch.compile(nn.Linear(4, 4))\n"
    unused += "x = torch.ones(4, device='cuda')\n"
    assert run(unused).unmodeled == "" and run(unused).fits
    assert run(unused + "f(x)").unmodeled.startswith("about: without what compiling saves or adds")


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("how", ["torch.compile(net, backend=B)(x)", "net.compile(backend=B); net(x)"])
def test_a_compiled_module_counts_when_it_runs(run, how, backend):
    text = f"B = {backend!r}\nnet = nn.Linear(4, 4).cuda()\nx = torch.ones(1, 4, device='cuda')\n"
    assert run(text + how).unmodeled.startswith("about: ")
    assert run(text + how.replace("; net", "").replace("(x)", "")).unmodeled == ""


def test_places_are_short_and_no_row_is_printed_twice(run):
    report = run("""
import copy
net = nn.Linear(1024, 1024).cuda()
copies = [copy.deepcopy(net) for _ in range(3)]
with torch.no_grad():
    a = copies[0](torch.ones(4, 1024, device="cuda"))
b = copies[0](torch.ones(4, 1024, device="cuda"))
""")
    assert not any("copy.py" in place for place in report.at.stack)
    assert all("site-packages" not in one.library for one in report.lines)
    shown = [(one.part, one.operator, one.place, one.library) for one in report.lines]
    assert len(set(shown)) == len(shown)


# --- public questions --------------------------------------------------------------------------------------


ATTENTION = (
    "q = torch.randn(2, 8, 1024, {}, device='cuda', dtype=torch.{})\nF.scaled_dot_product_attention(q, q, q{})\n"
)


@pytest.mark.parametrize(
    ("size", "dtype", "more", "gpu", "said", "helps"),
    [
        (64, "bfloat16", "", "T4", "memory-efficient: it takes float16 and float32 on compute", "float16 instead"),
        (
            65,
            "float16",
            "",
            "T4",
            "memory-efficient: head sizes must be equal multiples of 8, not 65 and 65",
            "Pad the",
        ),
        (64, "float64", "", "A100-80GB", "flash: it takes float16 and bfloat16, not float64", "Autocast"),
    ],
)
def test_why_attention_falls_back_to_the_math_backend(run, size, dtype, more, gpu, said, helps):
    report = run(ATTENTION.format(size, dtype, more), gpu=gpu)
    found = named(report)["attention by the math backend"]
    assert "in 1 call," in found.text and said in found.text and found.remedy.startswith(helps)
    assert found.nbytes >= 2 * 8 * 1024 * 1024 * 2
    assert "sdpa" not in found.remedy and "attention scores" not in named(report)


def test_math_attention_that_was_chosen_is_said_to_be(run):
    text = """
from torch.nn.attention import SDPBackend, sdpa_kernel
q = torch.randn(2, 8, 1024, 64, device='cuda', dtype=torch.float16)
with sdpa_kernel(SDPBackend.MATH):
    F.scaled_dot_product_attention(q, q, q)
"""
    assert "flash: switched off" in named(run(text, gpu="H100"))["attention by the math backend"].text


def test_eager_attention_gets_the_advice_of_sdpa(run):
    report = run("q = torch.randn(8, 4096, 64, device='cuda')\na = (q @ q.transpose(1, 2)).softmax(-1) @ q\n")
    assert "attn_implementation='sdpa'" in named(report)["attention scores"].remedy


VARYING = """
import random
random.seed(0)
kept = []
for step in range(60):
    a = torch.empty(random.randint(11, 60) * 2**20 + 512 * step, dtype=torch.uint8, device="cuda")
    b = torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda")
    kept.append(b)
    del a
"""


def test_why_more_is_reserved_than_allocated(run):
    report = run(VARYING)
    found = named(report)["fragmentation"]
    assert found.nbytes == report.reserved - report.peak
    assert "expandable_segments:True reserves " in found.remedy and "replays of the run" in found.remedy
    assert report.fits


def test_a_setting_that_a_replay_recommends_does_what_it_says(run, monkeypatch):
    first = named(run(VARYING))["fragmentation"].remedy
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    reserved = run(VARYING).reserved
    assert f"expandable_segments:True reserves {reserved / MIB:g} MiB" in first.replace(",", "")


LEAK = """
net = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
{before}
for step in range(8):
    x = torch.randn(256, 1024, device="cuda")
    out = net(x)
    loss = out.square().mean()
    {inside}
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("before", "inside", "operator", "nbytes", "holder"),
    [
        ("kept = []", "kept.append(out)", "addmm", 256 * 1024 * 4, "a list of 8 elements"),
        ("kept = {}", "kept[step] = loss", "mean", 512, "a dict of 8 entries"),
    ],
)
def test_what_grows_with_each_step(run, before, inside, operator, nbytes, holder):
    grown = [one for one in run(LEAK.format(before=before, inside=inside)).findings if one.name == "memory grows"]
    assert len(grown) == 1 and grown[0].nbytes == nbytes
    assert f"each optimizer step leaves one more block ({nbytes}" in grown[0].text.replace(",", "") or nbytes >= MIB
    assert f"of {operator} alive, held by {holder}" in grown[0].text
    assert grown[0].lines[0].startswith("train.py:")


def test_a_sum_of_losses_keeps_the_graph_of_each(run):
    """A validation loop without no_grad."""
    report = run("""
net = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()).cuda()
total = 0
for step in range(8):
    x = torch.randn(512, 1024, device="cuda")
    total = total + net(x).square().mean()
""")
    grown = [one for one in report.findings if one.name == "memory grows"]
    assert any("tanh alive, held by autograd's graph" in one.text and one.nbytes == 2 * MIB for one in grown)


def test_what_grows_in_a_loop_without_an_optimizer(run):
    report = run("""
net = nn.Linear(1024, 1024).cuda()
outputs = []
with torch.no_grad():
    for step in range(8):
        x = torch.randn(512, 1024, device="cuda")
        outputs.append(net(x))
""")
    assert (
        "each input leaves one more block (2 MiB) of addmm alive, held by a list of"
        in named(report)["memory grows"].text
    )


def test_a_loop_that_keeps_nothing_does_not_grow(run):
    assert "memory grows" not in named(run(LEAK.format(before="", inside="pass")))


def test_why_there_is_a_copy_as_large_as_the_input(run):
    report = run("""
a = torch.randn(64, 512, 512, device="cuda")
b = torch.randn(512, 512, device="cuda")
with torch.no_grad():
    b.expand(64, 512, 512).reshape(64 * 512, 512)
""")
    found = named(report)["copy of an input"]
    assert found.nbytes == 64 * 512 * 512 * 4 and found.lines == ("train.py:8",)


def test_what_a_hook_allocates_in_the_backward_of_a_loss_is_not_the_loss_s():
    """FSDP gathers a layer's parameters there, by `empty`."""
    lines = (
        Line(900 * MIB, 1, TEMPORARIES, "NllLossBackward0 (nll_loss_backward)", "backward", "train.py:9"),
        Line(400 * MIB, 1, DATA, "NllLossBackward0 (empty)", "backward", "train.py:9"),
    )
    facts = Facts(capacity=4000 * MIB, peak=1300 * MIB, reserved=1400 * MIB, parts={}, lines=lines)
    assert facts.of(LOSS) == (900 * MIB, ("train.py:9",))


def test_logits_get_a_chunked_loss(run):
    report = run("""
hidden = torch.randn(4096, 256, device="cuda", requires_grad=True)
head = nn.Linear(256, 32000, device="cuda")
F.cross_entropy(head(hidden), torch.zeros(4096, dtype=torch.long, device="cuda")).backward()
""")
    assert "cross-entropy" in named(report)["logits"].remedy
    assert named(report)["logits"].nbytes >= 4096 * 32000 * 4


def test_a_model_that_is_cards_too_large_gets_no_advice_about_a_few_mib(run):
    report = run(
        """
with torch.device("meta"):
    net = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(48)])
net.to_empty(device="cpu") if False else None
host = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(100)])
host.cuda()
""",
        memory="256 MiB",
    )
    found = named(report)
    size = 100 * (1024 * 1024 + 1024) * 4
    assert found["model larger than the GPU"].nbytes == size
    assert "takes at least 4 GPUs" in found["model larger than the GPU"].remedy
    assert "bfloat16 weights are" in found["model larger than the GPU"].remedy
    assert "missing memory" not in found and len(found) == 1
    assert report.outcome == "does not fit"


def facts(**more) -> Facts:
    lines = (Line(900 * MIB, 3, ACTIVATIONS, "gelu", "forward", "train.py:3"),)
    given = {"parts": {PARAMETERS: 100 * MIB, ACTIVATIONS: 900 * MIB}, "lines": lines, "missing": 5 * MIB}
    return Facts(1024 * MIB, 1000 * MIB, 1000 * MIB, **{**given, **more})


def test_advice_knows_the_dtype_of_the_weights():
    texts = {}
    for dtype in ("float32", "bfloat16"):
        known = facts()
        known.dtypes[dtype] = 100 * MIB
        texts[dtype] = " ".join(str(one) for one in findings(known))
    assert "bfloat16 autocast" in texts["float32"] and "They are float32" in texts["float32"]
    assert "bfloat16" not in texts["bfloat16"]


# --- no silent zeros --------------------------------------------------------------------------------------


def test_a_call_whose_operations_cannot_be_counted_is_named(run, monkeypatch):
    def cannot(*args, **kwargs):
        raise TypeError("an argument that it does not know")

    text = "x = torch.ones(4, 6, device='cuda')\nx @ x.t()\n"
    assert "in the time" not in str(run(text))
    plan = costs.plan_of(torch.ops.aten.mm.default)
    monkeypatch.setattr(plan, "flops", cannot)
    monkeypatch.setattr(costs, "unread", set())
    costs.forget()
    assert "in the time: operations of mm, of which some calls are timed by their memory traffic" in str(run(text))


def test_the_traffic_of_an_unknown_collective_is_not_zero():
    with pytest.raises(ValueError, match="is not a known collective"):
        kind("all_shuffle").bytes_sent(1000, 8)
