"""simgpu run: a script, unmodified, on a simulated GPU, and the page that it ends with."""

import json
import pickle
import re
import signal
import sys
import textwrap
import time

import pytest
import torch

import simgpu
from simgpu.command import main
from simgpu.device import machine
from simgpu.patches import Patches
from simgpu.report import watch
from simgpu.report.owners import ACTIVATIONS, DATA, GRADIENTS, PARAMETERS, PARTS, STATES, TEMPORARIES, WORKSPACES
from simgpu.report.places import shortened
from simgpu.report.report import CACHE, Report
from simgpu.report.sizes import capacity, parse
from simgpu.running import clock
from simgpu.running.steps import NO_STEP
from tests.pinned import of_pinned_torch

MIB = 2**20

TRAINING = """
    import torch
    from torch import nn

    def main():
        net = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
        optimizer = torch.optim.AdamW(net.parameters())
        for step in range(3):
            x = torch.randn(256, 1024).cuda()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    if __name__ == "__main__":
        main()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Writes a script into a folder of its own, which is the current one, and gives its path."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="train.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(path)

    return write


def printed(capsys) -> str:
    """What a script printed, before the page."""
    return capsys.readouterr().out.split("─" * 100)[0].strip()


# --- what the page says ------------------------------------------------------------------------------


@of_pinned_torch
def test_parts_of_a_training_step_are_those_of_the_formulas(script):
    report = simgpu.run(script(TRAINING), gpu="H100")
    weights = 2 * 1024 * 4096 * 4 + (1024 + 4096) * 4
    assert (report.fits, report.status, report.steps) == (True, 0, 3)
    assert report.parts[PARAMETERS] == report.parts[GRADIENTS] == weights
    assert report.parts[STATES] == 2 * weights  # the counters of steps are the host's
    assert report.parts[WORKSPACES] == 2 * 32 * MIB  # one in forward, one in backward
    assert sum(report.parts[part] for part in PARTS if part in report.parts) == report.peak
    assert report.parts[CACHE] == report.reserved - report.peak
    assert report.nvidia_smi == report.reserved + report.context
    assert report.unmodeled == ""


def test_a_script_that_takes_no_memory_has_no_parts(script):
    report = simgpu.run(script("import torch\nprint(torch.cuda.is_available())\n"))
    assert (report.fits, report.peak, report.reserved, report.parts, report.lines) == (False, 0, 0, {}, ())
    assert (report.outcome, report.status) == ("undecided", 3)
    assert str(report).startswith("train.py on a simulated A100-80GB: undecided, no GPU memory was used.\n")


def test_the_curve_of_a_long_run_keeps_its_peaks_in_bounded_memory(monkeypatch):
    monkeypatch.setattr("simgpu.report.timeline.EVENTS", 16)
    with simgpu.simulated_gpu("H100"):
        with watch.Watch(machine.on()) as watched:
            for size in [*range(1, 200), 5000, *range(1, 150)]:
                kept = torch.empty(size * 512, dtype=torch.uint8, device="cuda")
                del kept
        curve = watched.timeline.curve
        assert watched.timeline.events == 2 * 349
        assert len(curve) < 32
        assert max(curve[0::2]) == watched.peak.allocated == 5000 * 512
        assert max(curve[1::2]) == watched.reserved


def test_the_counters_are_pytorchs_own(script, capsys):
    text = TRAINING + "    print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())\n"
    report = simgpu.run(script(text))
    assert printed(capsys) == f"{report.peak} {report.reserved}"


def test_activations_are_what_lives_when_backward_begins(script):
    report = simgpu.run(
        script("""
        import torch
        from torch import nn
        net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)]).cuda()
        net(torch.ones(4096, 256, device="cuda")).sum().backward()
        """)
    )
    kept = report.parts[ACTIVATIONS] + report.parts[DATA]
    assert kept >= 8 * 4096 * 256 * 4  # each tanh keeps its result, and the first layer its input
    assert report.at.stage == "backward"


def test_what_a_frozen_body_passes_on_is_no_activation(script):
    """At the peak, in the forward pass, the input and the outputs of two of its layers live, and none is kept."""
    report = simgpu.run(
        script("""
        import torch
        from torch import nn
        body = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda().requires_grad_(False)
        head = nn.Linear(1024, 10).cuda()
        for _ in range(2):
            head(body(torch.randn(32768, 1024, device="cuda"))).sum().backward()
        """)
    )
    assert report.at.stage == "forward"
    assert report.parts[TEMPORARIES] >= 2 * 32768 * 1024 * 4
    assert report.parts.get(ACTIVATIONS, 0) == 0


def test_where_the_peak_is(script):
    path = script("""
        import torch

        def middle(x):
            return torch.cat([x, x])

        x = torch.ones(2**20, device="cuda")
        y = middle(x)
        del y
        """)
    report = simgpu.run(path)
    assert (report.at.operator, report.at.place, report.at.asked) == ("cat", "train.py:5 in middle", 2**23)
    assert report.at.stack == ("train.py:5 in middle", "train.py:8")
    assert "cat, forward, after no optimizer steps; it allocates 8 MiB\n    train.py:5 in middle\n" in str(report)


def test_data_from_the_host_and_temporaries(script):
    report = simgpu.run(
        script("""
        import torch
        x = torch.ones(2**20).cuda()
        with torch.no_grad():
            y = x + 1
        """)
    )
    assert report.parts == {TEMPORARIES: 2**22, DATA: 2**22, CACHE: 12 * MIB}


def test_parameters_of_a_model_that_is_gone_at_the_end(script):
    """No optimizer and no look at the end finds it: it is known by what moved it."""
    report = simgpu.run(
        script("""
        import torch
        net = torch.nn.Linear(1024, 1024).to("cuda")
        net(torch.ones(1, 1024, device="cuda"))
        net = None
        """)
    )
    assert report.parts[PARAMETERS] == 2**22 + 2**12 and report.parts[DATA] == 2**12


def test_the_page_of_a_run_that_fits(script, capsys):
    assert main(["run", "--gpu", "H100", script(TRAINING), "--some", "flag"]) == 0
    page = capsys.readouterr().out
    engine, _, first = page.splitlines()[2:5]
    assert engine.startswith("Engine meta")
    assert first.startswith("train.py fits on a simulated H100, with ")
    for title in ("Where the peak is", "Memory by kind", "Allocated by", "Not modelled"):
        assert f"\n{title}\n" in page
    assert "nothing: each operator that ran was compared" in page


def test_the_page_names_what_is_left_out(script):
    report = simgpu.run(script("import torch\ntorch.fft.rfft(torch.ones(64, device='cuda'))\n"))
    assert "cuFFT's workspaces" in report.unmodeled
    assert report.unmodeled in str(report)


# --- when it does not fit, or fails ------------------------------------------------------------------


def test_out_of_memory_is_at_the_failing_operator(script, capsys):
    path = script(TRAINING)
    assert main(["run", "--gpu", "H100", "--memory", "810 MiB", path]) == 1
    said = capsys.readouterr()
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in said.err
    assert "simgpu" not in said.err.replace("simgpu-", "")  # its own frames are not in the traceback
    first = said.out.split("─" * 100)[1].strip().splitlines()[2]
    assert re.fullmatch(
        r"train\.py does not fit on a simulated H100: .* at train\.py:1\d in main asks for \S+ MiB, "
        r"and \S+ of 810 MiB are free\.",
        first,
    )
    assert "Findings\n" in said.out


def test_advice_has_the_bytes_of_this_run(script):
    report = simgpu.run(script(TRAINING), gpu="H100", memory="850 MiB")
    assert report.ending == "out of memory"
    states, page = report.parts[STATES], str(report)
    assert f"Optimizer states hold {states / MIB:,.2f} MiB".replace(".00", "") in page
    assert report.failure[0] > report.failure[1]


def test_memory_that_lies_in_pieces(script):
    report = simgpu.run(
        script("""
        import torch
        pieces = [torch.empty(8 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(20)]
        del pieces[::2]
        torch.empty(60 * 2**20, dtype=torch.uint8, device="cuda")
        """),
        gpu="T4",
        memory="340 MiB",
    )
    assert report.ending == "out of memory"
    assert "\n  - The cache holds " in str(report) and "expandable_segments:True" in str(report)


def test_a_program_that_catches_the_error_has_fitted(script, capsys):
    report = simgpu.run(
        script("""
        import torch
        size = 2**34
        while True:
            try:
                x = torch.empty(size, device="cuda")
                break
            except torch.cuda.OutOfMemoryError:
                size //= 2
        print(size)
        """),
        gpu="T4",
    )
    assert (report.status, report.caught) == (0, 3)
    assert printed(capsys) == str(2**31)
    assert "3 allocation(s) failed, and the program caught the error" in str(report)


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("raise KeyError('x')", 2, "KeyError: 'x'"),
        ("import sys; sys.exit(0)", 3, "no GPU memory was used"),
        ("import sys; sys.exit()", 3, "no GPU memory was used"),
        ("import sys; sys.exit(3)", 2, "it ended with status 3"),
        ("import sys; sys.exit('no data')", 2, "it ended with status no data"),
    ],
)
def test_other_ends(script, capsys, text, status, said):
    assert main(["run", script(text)]) == status
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "H10", "train.py"], "unknown GPU 'H10'; did you mean 'H100'?"),
        (["trian.py"], "no file 'trian.py'; did you mean 'train.py'?"),
        (["-m", "no_such_module"], "No module named 'no_such_module', searched from "),
        ([], "wanted a script"),
        (["-m"], "wanted a module after -m"),
        (["-m", "json"], "No module named json.__main__; 'json' is a package and cannot be directly executed"),
        (["-m", "itertools"], "No code object available for 'itertools'"),
        (["-m", "train.py"], "for the script, leave -m and write train.py"),
        (["-m", ".train"], "not the relative name '.train'"),
        (["--memory", "12 apples", "train.py"], "'12 apples' is not a size"),
        (["--memory", "12", "train.py"], "'12' is 12 B, as it has no unit; write '12GiB' or '12MiB'"),
        (["--memory", "1 MiB", "train.py"], "does not hold the CUDA context"),
        (["--steps", "0", "train.py"], "steps is a whole number of 1 or more, not 0"),
        (["broken.py"], "'broken.py' is not valid Python, line 1"),
        (["binary.py"], "'binary.py' is not valid Python: source code string cannot contain null bytes"),
        (["folder"], "the folder 'folder' has no __main__.py to run"),
        (["nothing"], "no file 'nothing'"),
        (["--out", "train.py", "train.py"], "cannot be made"),
    ],
)
def test_bad_input_gets_one_line(script, capsys, arguments, said):
    script(TRAINING)
    script("def", "broken.py")
    script("\0", "binary.py")
    script("", "folder/train.py")
    assert main(["run", *arguments]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("simgpu run: ") and written.err.count("\n") == 1
    assert said in written.err


# --- what a script finds ------------------------------------------------------------------------------


def test_a_script_is_main_with_its_own_arguments_and_folder(script, capsys, tmp_path, monkeypatch):
    script("VALUE = 7", "code/beside.py")
    path = script("import sys, beside\nprint(__name__, sys.argv, beside.VALUE, __file__)", "code/train.py")
    before = sys.argv, sys.path, sys.modules["__main__"]
    simgpu.run("code/train.py", ["--lr", "1e-3"])
    assert printed(capsys) == f"__main__ ['code/train.py', '--lr', '1e-3'] 7 {path}"
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    sys.modules.pop("beside")


def test_handlers_of_signals_are_put_back(script):
    """torchrun, for one, replaces them."""
    before = signal.getsignal(signal.SIGTERM)
    report = simgpu.run(script("import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n1 / 0"))
    assert (report.outcome, signal.getsignal(signal.SIGTERM)) == ("failed", before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_a_timer_of_the_program_ends_with_it(script):
    """Its signal would end the process once the handler is put back."""
    before = signal.getsignal(signal.SIGALRM)
    text = (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: None)\nsignal.setitimer(signal.ITIMER_REAL, 600, 600)"
    )
    simgpu.run(script(text))
    assert (signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)) == ((0.0, 0.0), before)


def test_a_module_and_its_relative_imports(script, capsys):
    script("import torch\nDEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'", "package/__init__.py")
    script("VALUE = 9", "package/values.py")
    script("from . import DEVICE\nfrom .values import VALUE\nprint(__package__, VALUE, DEVICE)", "package/train.py")
    script("from .train import VALUE", "package/__main__.py")
    assert main(["run", "-m", "package.train"]) == 3
    assert main(["run", "-m", "package"]) == 3
    assert printed(capsys).splitlines()[0] == "package 9 cuda"
    for name in [name for name in sys.modules if name.split(".")[0] == "package"]:
        sys.modules.pop(name)


def test_clocks_are_the_simulated_one_and_sleep_takes_no_time(script, capsys, monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    simgpu.run(
        script("""
        import time, torch
        from time import perf_counter
        wall, fine = time.time(), perf_counter()
        x = torch.ones(8192, 8192, device="cuda")
        for _ in range(100):
            x @ x
        torch.cuda.synchronize()
        print(1.0 < time.time() - wall < 100, time.monotonic_ns() > 0, perf_counter() > fine)
        time.sleep(3600)
        print(round(perf_counter() - fine) in range(3600, 3700))
        deadline = time.time() + 0.001
        while time.time() < deadline:
            pass
        """),
        gpu="T4",
    )
    assert printed(capsys) == "True True True\nTrue"
    assert 3600 not in slept
    assert time.time.__module__ == "time"


def test_steps_end_a_program_and_let_it_clean_up(script, capsys):
    report = simgpu.run(
        script("""
        import torch
        weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        try:
            for step in range(100):
                weight.sum().backward()
                try:
                    optimizer.step()
                except Exception:
                    print("swallowed")
        finally:
            print(step)
        """),
        steps=4,
    )
    assert (report.fits, report.steps, printed(capsys)) == (True, 4, "3")
    assert "Ended after 4 optimizer steps" in str(report)


def test_steps_with_two_optimizers(script, capsys):
    """Both make two steps: a GAN's second one is not forgotten."""
    simgpu.run(
        script("""
        import torch
        weights = [torch.nn.Parameter(torch.ones(8, device="cuda")) for _ in range(2)]
        made = [torch.optim.SGD([weight], lr=0.1) for weight in weights]
        for step in range(100):
            for number, (weight, optimizer) in enumerate(zip(weights, made)):
                weight.sum().backward()
                print(step, number)
                optimizer.step()
        """),
        steps=2,
    )
    assert printed(capsys).splitlines() == ["0 0", "0 1", "1 0", "1 1"]


def test_a_second_optimizer_that_steps_less_often_is_waited_for(script, capsys):
    """A critic steps five times for each step of its generator."""
    report = simgpu.run(
        script("""
        import torch
        weights = [torch.nn.Parameter(torch.ones(8, device="cuda")) for _ in range(2)]
        critic, generator = [torch.optim.Adam([weight], lr=0.1) for weight in weights]
        for step in range(1, 100):
            sum(weight.sum() for weight in weights).backward()
            critic.step()
            if step % 5 == 0:
                generator.step()
            print(step)
        """),
        steps=2,
    )
    assert printed(capsys).split()[-1] == "9"  # the generator's second step ends the tenth
    assert report.bounds == ()


def test_an_optimizer_that_never_steps_is_waited_for_and_named(script, capsys):
    report = simgpu.run(
        script("""
        import torch
        weights = [torch.nn.Parameter(torch.ones(8, device="cuda")) for _ in range(2)]
        one, other = [torch.optim.Adam([weight], lr=0.1) for weight in weights]
        for step in range(100):
            sum(weight.sum() for weight in weights).backward()
            one.step()
        """),
        steps=2,
    )
    assert report.steps == 10
    assert report.bounds == (
        "1 of 2 optimizers had made no step when the limit ended the program, so the peak may come later",
    )
    assert report.status == 3 and "at least" in str(report)


OVERFLOWS = """
    import torch
    model = torch.nn.Linear(64, 64).cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
    def main():
        for _ in range(2):
            loss = model(torch.full((4, 64), 1e4, device="cuda")).square().mean() * 1e35
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    main()
"""


def test_a_run_in_which_every_step_was_skipped_is_undecided(script):
    """The states of its optimizer were never allocated, so the figure is no measure of a training step."""
    report = simgpu.run(script(OVERFLOWS), gpu="T4", values=True)
    assert report.steps == 0 and report.status == 3
    assert report.bounds == (NO_STEP,) and report.parts.get("optimizer states", 0) == 0


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)"])
def test_a_backward_pass_without_a_step_is_undecided_only_where_there_is_an_optimizer(script, end):
    made = "model = torch.nn.Linear(8, 8).cuda()\nmodel(torch.ones(4, 8).cuda()).sum().backward()"
    alone = simgpu.run(script(f"import torch\n{made}\n{end}"), gpu="T4")
    assert alone.status == 0 and not alone.bounds
    optimizer = "torch.optim.SGD(model.parameters(), lr=0.1)"
    held = simgpu.run(script(f"import torch\n{made}\nheld = {optimizer}\n{end}"), gpu="T4")
    assert held.status == 3 and held.bounds == (NO_STEP,)
    stepped = simgpu.run(script(f"import torch\n{made}\n{optimizer}.step()\n{end}"), gpu="T4")
    assert stepped.status == 0 and not stepped.bounds


def test_one_optimizer_for_each_layer_steps_in_backward(script):
    """All of them make two steps: the states of all are there in the second backward pass."""
    path = script("""
        import torch
        from torch import nn
        net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).cuda()
        made = {weight: torch.optim.Adam([weight]) for weight in net.parameters()}
        def step(weight):
            made[weight].step()
            made[weight].zero_grad()
        for weight in net.parameters():
            weight.register_post_accumulate_grad_hook(step)
        for _ in range(4):
            net(torch.randn(8, 64, device="cuda")).sum().backward()
        """)
    limited, whole = simgpu.run(path, steps=2), simgpu.run(path)
    assert (limited.steps, whole.steps) == (2, 4)
    assert (limited.peak, limited.bounds) == (whole.peak, ())


def test_one_step_is_a_lower_bound(script):
    path = script(TRAINING.replace("256, 1024", "16384, 1024"))
    report = simgpu.run(path, steps=1)
    assert report.bounds[0].startswith("the optimizer had made fewer than 2 steps") and report.status == 3
    assert report.peak < simgpu.run(path, steps=2).peak


def test_a_step_for_each_group_of_parameters_is_one_step(script):
    """As DeepSpeed's ZeRO steps: with one of the groups at a time."""
    report = simgpu.run(
        script("""
        import torch
        weights = [torch.nn.Parameter(torch.ones(8, device="cuda")) for _ in range(2)]
        optimizer = torch.optim.Adam([{"params": [weight]} for weight in weights])
        groups = optimizer.param_groups
        for step in range(100):
            sum(weight.sum() for weight in weights).backward()
            for group in groups:
                optimizer.param_groups = [group]
                optimizer.step()
            optimizer.param_groups = groups
        """),
        steps=2,
    )
    assert (report.steps, report.bounds) == (2, ())


def test_a_skipped_step_is_none(script):
    """GradScaler skips the optimizer's step where gradients are infinite, and a scheduler steps without it."""
    report = simgpu.run(
        script("""
        import torch
        weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        scaler = torch.amp.GradScaler()
        for step in range(4):
            factor = float("inf") if step < 2 else 1.0
            scaler.scale(weight.sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
        """),
        values=True,
    )
    assert report.steps == 2


def test_backward_passes_end_a_program_without_an_optimizer(script, capsys):
    """A pass within a pass, here a checkpoint's, is none of its own; a gradient penalty's is."""
    path = script("""
        import torch
        from torch.utils.checkpoint import checkpoint
        weight = torch.ones(8, device="cuda", requires_grad=True)
        for step in range(100):
            loss = checkpoint(lambda x: x.square().sum(), weight, use_reentrant=True)
            loss.backward()
            penalty, = torch.autograd.grad(weight.square().sum(), weight)
            print(step)
        """)
    report = simgpu.run(path, backward_passes=4)
    assert printed(capsys).split() == ["0", "1"]
    assert "Ended before backward pass 5, as --backward-passes says." in str(report)
    assert report.bounds == ()
    capsys.readouterr()
    assert simgpu.run(path, backward_passes=1).bounds[0].startswith("fewer than 2 backward passes")
    assert main(["run", "--backward-passes", "0", path]) == 2
    assert "backward_passes is a whole number of 1 or more, not 0" in capsys.readouterr().err


def test_steps_without_an_optimizer_are_said_to_have_no_effect(script):
    path = script("""
        import torch
        weight = torch.ones(8, device="cuda", requires_grad=True)
        for step in range(3):
            weight.sum().backward()
        """)
    assert "--steps had no effect" in str(simgpu.run(path, steps=2))
    assert "--steps" not in str(simgpu.run(path))


def test_ctrl_c_ends_the_program_and_the_page_says_so(script, capsys):
    path = script("""
        import signal, torch
        weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in range(100):
            weight.sum().backward()
            optimizer.step()
            if step == 2:
                signal.raise_signal(signal.SIGINT)
        """)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["run", path]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    written = capsys.readouterr()
    assert "Interrupted by Ctrl-C, after 3 optimizer steps." in written.out
    assert "undecided, it was interrupted" in written.out and "Traceback" not in written.err


# --- values that do not exist ---------------------------------------------------------------------------


def test_values_that_do_not_exist_are_zeros_and_counted(script, capsys):
    report = simgpu.run(
        script("""
        import numpy as np
        import torch
        x = torch.randn(4, 3, device="cuda")
        print(x.sum().item(), x.argmax().item(), bool((x > 5).any()), x.cpu().numpy().shape, x[0].tolist())
        print(int(x.sum()), (x > 0).nonzero().shape, x[x > 0].shape, np.asarray(x.cpu()).dtype)
        print(torch.tensor([1, 2], device="cuda").sum().item(), f"{x.mean():.3f}")
        if torch.equal(x, x + 1):
            print("equal")
        """)
    )
    assert printed(capsys).splitlines() == [
        "0.0 0 False (4, 3) [0.0, 0.0, 0.0]",
        "0 torch.Size([0, 2]) torch.Size([0]) float32",
        "3 0.000",
        "equal",
    ]
    asked = {what: count for what, _, count in report.placeholder_values}
    assert asked["tolist()"] == 1 and asked["bool()"] == 1
    assert all(re.search(r"train\.py:\d+$", where) for _, where, _ in report.placeholder_values)
    assert "answered as 0" in str(report)


def test_numpy_of_what_requires_a_gradient_is_an_error_as_on_a_gpu(script):
    report = simgpu.run(
        script("""
        import torch
        x = torch.rand(4, device="cuda", requires_grad=True)
        print(x.detach().cpu().numpy(), x.cpu().detach().numpy())
        (x * 2).cpu().numpy()
        """)
    )
    assert report.status == 2 and "Can't call numpy() on Tensor that requires grad" in report.ended


def test_an_assert_holds_where_its_value_does_not_exist(script, capsys):
    """generalized_box_iou of DETR begins with two of them."""
    report = simgpu.run(
        script("""
        import torch
        x = torch.rand(4, 4, device="cuda")
        assert (x[:, 2:] >= x[:, :2]).all()
        assert not (x > 1).any(), f"{x}"
        assert (x >= 0).all().item() and (x < 1).all() and len(x) == 4, "range"
        assert torch.allclose(x, x * 1.0)
        assert (x > 2).any() or True
        print((x > 2).any().item(), bool((x > 2).any()))
        if torch.equal(x, x + 1):
            print("equal")
        assert x.argmax().item() > 0
        """)
    )
    assert printed(capsys).split() == ["False", "False", "equal"]  # two zeros are equal
    assert report.status == 2 and "AssertionError" in report.ended
    assert sum(n for what, _, n in report.placeholder_values if what == "assert, as one that holds") == 5


def test_without_a_run_there_are_no_stand_ins():
    with simgpu.simulated_gpu("T4"), pytest.raises(RuntimeError, match="has none"):
        torch.randn(4, device="cuda").argmax().item()


def test_checkpoints_are_counted_and_come_back(script, tmp_path):
    report = simgpu.run(
        script("""
        import io, os, pickle, shutil
        import torch
        from torch import nn
        net = nn.Linear(512, 512).cuda()
        optimizer = torch.optim.Adam(net.parameters())
        net(torch.ones(4, 512, device="cuda")).sum().backward()
        optimizer.step()
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, "last.pt")
        shutil.copyfile("last.pt", "best.pt")
        assert os.path.getsize("best.pt") < 2**16
        before = torch.cuda.memory_allocated()
        found = torch.load("best.pt", map_location="cuda:0")
        assert torch.cuda.memory_allocated() - before == 3 * (512 * 512 * 4 + 2048) + 2 * 512
        assert found["epoch"] == 3 and found["net"]["weight"].is_cuda
        net.load_state_dict(found["net"])
        optimizer.load_state_dict(found["optimizer"])
        host = torch.load("best.pt", map_location="cpu", weights_only=False)["net"]["weight"]
        assert host.device.type == "cpu" and host.shape == (512, 512)
        buffer = io.BytesIO()
        torch.save(net.cpu().state_dict(), buffer)
        assert torch.load(io.BytesIO(buffer.getvalue()))["bias"].shape == (512,)
        torch.save({"lr": 1e-3, "data": torch.arange(3)}, "real.pt")
        assert torch.load("real.pt")["data"].tolist() == [0, 1, 2]
        small = nn.Linear(4, 4)
        torch.save(small.cuda().state_dict(), "small.pt")  # so small that its values are known
        assert torch.equal(torch.load("small.pt", map_location="cpu")["weight"], small.weight.cpu())
        with open("open.pt", "wb") as file:
            torch.save(net, file)
        with open("open.pt", "rb") as file:
            assert torch.load(file, weights_only=False)(torch.ones(1, 512)).shape == (1, 512)
        torch.save({"known": torch.arange(3), "not": torch.randn(5, device="cuda")}, "both.pt")
        assert torch.load("both.pt")["known"].tolist() == [0, 1, 2]
        """)
    )
    assert report.ended == "" and report.fits
    assert report.files[0][:3] == ("last.pt", 1, 3 * (512 * 512 * 4 + 2048))
    assert ("open.pt", 1, 512 * 512 * 4 + 2048) in [one[:3] for one in report.files]
    assert torch.load(tmp_path / "real.pt")["lr"] == 1e-3


def test_safetensors_files_are_whole_and_hollow(script, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    report = simgpu.run(
        script("""
        import torch
        from safetensors.torch import load_file, save_file
        save_file({"a": torch.randn(3, 5, device="cuda"), "b": torch.randn(7, device="cuda").half()}, "x.safetensors")
        assert load_file("x.safetensors", device="cuda")["a"].shape == (3, 5)
        """),
        out=tmp_path / "out",
    )
    assert report.ended == ""
    assert not (tmp_path / "x.safetensors").exists()
    found = safetensors.load_file(tmp_path / "out" / "files" / "here" / "x.safetensors")
    assert {name: (tuple(one.shape), one.dtype) for name, one in found.items()} == {
        "a": ((3, 5), torch.float32),
        "b": ((7,), torch.float16),
    }


# --- the folder -----------------------------------------------------------------------------------------


def test_the_folder_of_a_run(script, tmp_path):
    path = script(TRAINING)
    report = simgpu.run(path, out=tmp_path / "out")
    assert Report.load(tmp_path / "out" / "report.json") == report
    assert (tmp_path / "out" / "page.txt").read_text(encoding="utf-8") == str(report)
    snapshot = pickle.loads((tmp_path / "out" / "snapshot.pickle").read_bytes())
    frames = snapshot["device_traces"][0][0]["frames"]
    assert any(frame["filename"] == path for frame in frames)
    assert (tmp_path / "out" / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_that_is_none(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"peak": 3}))
    with pytest.raises(ValueError, match=r"report\.json holds a JSON object with the keys 'peak': wanted the report"):
        Report.load(path)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("12 GiB", 12 * 2**30),
        ("12GiB", 12 * 2**30),
        ("1.5g", 1610612736),
        ("16 GB", 16 * 10**9),
        ("512", 512),
        (7, 7),
        ("2t", 2**41),
        ("1e9", 10**9),
        ("1.5e3 KiB", 1500 * 2**10),
        ("4 bytes", 4),
        ("3 kB", 3000),
        ("2 MB", 2 * 10**6),
        ("1 TB", 10**12),
        ("1,500 MiB", 1500 * 2**20),
        ("16,000,000,000", 16 * 10**9),
        ("1,024.5 KiB", 1049088),
        ("1_500 MiB", 1500 * 2**20),
    ],
)
def test_sizes(text, nbytes):
    assert parse(text) == nbytes


@pytest.mark.parametrize("text", ["12", " 0.5 ", "4096", "1,500", "1.5e3"])
def test_a_capacity_has_a_unit_or_is_large(text):
    with pytest.raises(ValueError, match=rf"write '{text.strip()}GiB' or"):
        capacity(text)
    assert capacity(f"{text}GiB") == 1024 * parse(f"{text}MiB")
    assert capacity("17179869184") == capacity("16 GiB") == capacity(2**34)


@pytest.mark.parametrize("text", ["", "GiB", "-1 GiB", "0", "12 KiBi", "1e", "1e-3", True, None])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse(text)


@pytest.mark.parametrize(
    "text", ["1,5 GiB", "0,5g", "1,50 GiB", "1500,000 MiB", "1,5000", ",500", "1,500,0", "1,500_000"]
)
def test_a_decimal_comma_is_not_taken_for_thousands(text):
    with pytest.raises(ValueError, match=r"is not a size: a comma groups thousands .* wanted a point \('1.5 GiB'\)"):
        parse(text)


def test_a_librarys_file_has_one_short_name():
    assert shortened(torch.__file__) == "torch/__init__.py"
    assert shortened("/tmp/ipykernel_7/12.py") == "a cell of the notebook"


def test_the_clocks_of_a_script_agree():
    patches = Patches()
    with simgpu.simulated_gpu("A100-80GB"):
        clock.patch(patches, machine.on())
        try:
            read = {name: getattr(time, name)() for name in ("perf_counter", "perf_counter_ns")}
            time.sleep(2.5)
            seconds = time.perf_counter() - read["perf_counter"]
            assert seconds == pytest.approx(2.5, abs=1e-4)
            assert time.perf_counter_ns() - read["perf_counter_ns"] == pytest.approx(2.5e9, abs=1e5)
        finally:
            patches.undo()


@pytest.mark.parametrize("more, said", [("dist.all_reduce(x)", True), ("", False)])
def test_of_one_rank_the_page_says_what_the_others_are(script, capsys, more, said):
    path = script(
        f"""
        import torch
        import torch.distributed as dist
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        x = torch.ones(1024, device="cuda")
        {more}
        """
    )
    assert main(["run", "--rank", "1", "--ranks", "2", path]) == 0
    text = capsys.readouterr().out
    assert ("No tensor's values come from another rank." in text) == said
    assert ("no loss or sum over ranks is that of a real run" in text) == said
