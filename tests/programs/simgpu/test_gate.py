"""The memory gate for other people's tests, and the difference of two runs."""

import pickle
import shutil
from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch

import simgpu
import simgpu.report.gate
import simgpu.running.run
from simgpu.command import main
from simgpu.report.compare import Difference, place_of
from tests.pinned import of_pinned_torch

pytest_plugins = ["pytester"]
NAMED = {one.value for distribution in distributions() for one in distribution.entry_points if one.group == "pytest11"}
PLUGIN = () if "simgpu.pytest_plugin" in NAMED else ("-p", "simgpu.pytest_plugin")  # installed, an entry point names it
PROJECT = Path(__file__).parents[3] / "examples" / "memory_gate"


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported():
    """pytester forgets the modules that its runs are the first to import, and torch's cannot be imported twice."""
    with simgpu.simulated_gpu("T4"):
        layer = torch.nn.Linear(2, 2).cuda()
        layer(torch.ones(2, 2, device="cuda")).sum().backward()
        torch.optim.AdamW(layer.parameters()).step()


@pytest.fixture
def project(pytester, monkeypatch):
    """A copy of the example, with the plugin; call it to run its tests."""
    for path in PROJECT.glob("*.py"):
        shutil.copy(path, pytester.path)

    def run(*arguments, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", *arguments)

    return run


def test_the_example_passes(project):
    project().assert_outcomes(passed=2)


@of_pinned_torch
def test_it_fails_with_eager_attention_and_says_what_to_do(project):
    result = project(ATTENTION="eager")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "* B (* MiB) over the limit: on a simulated T4 the test allocates 2,862,408,704 B (*",
            "  SoftmaxBackward0 (_softmax_backward_data), backward, *",
            "    model.py:* in training_step",
            "* MiB  activations kept for backward: _softmax in 4 blocks",
            "* model.py:* in forward",
            "  - Activations kept for backward hold * MiB. Half the batch *",
            "  nothing: each operator that ran was compared*",
        ]
    )
    result.stdout.no_fnmatch_line("*_pytest*")


def test_it_fails_on_a_smaller_card(project, pytester):
    path = pytester.path / "test_memory.py"
    path.write_text(path.read_text().replace("gpu=GPU,", 'gpu=GPU, memory="1 GiB",'))
    result = project("-k", "training_step")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(["the test does not fit on a simulated T4: * asks for * of 1,024 MiB are free."])


def test_marks_and_fixtures(pytester):
    pytester.makepyfile(
        """
        import pytest, torch

        @pytest.mark.gpu_memory(peak="1 MiB")
        def test_below():
            torch.ones(10, device="cuda")

        @pytest.mark.gpu_memory(peak=511)
        def test_one_byte_above():
            torch.ones(10, device="cuda")

        @pytest.mark.gpu_memory(gpu="RTX 4090", reserved="1 MiB")
        def test_reserved():
            torch.ones(10, device="cuda")

        @pytest.fixture
        def big():
            return torch.ones(2**20, device="cuda")

        @pytest.mark.gpu_memory(peak="1 MiB")
        def test_what_a_fixture_makes_counts(big):
            pass

        @pytest.mark.gpu_memory(gpu="RTX 9090")
        def test_unknown_gpu():
            pass

        @pytest.mark.gpu_memory(peek="1 GiB")
        def test_unknown_limit():
            pass

        @pytest.mark.gpu_memory(peak="1 MiB")
        def test_its_own_error():
            torch.ones(2**20, device="cuda")
            assert 1 == 2

        @pytest.mark.parametrize("simulated_gpu", ["T4", "H100"], indirect=True)
        def test_a_gpu_of_the_parameter(simulated_gpu):
            assert torch.cuda.get_device_properties(0).total_memory == simulated_gpu.total_memory

        @pytest.mark.gpu_memory(gpu="L4", peak="1 GiB")
        def test_the_fixture_is_the_gpu_of_the_mark(simulated_gpu):
            assert simulated_gpu.name == "L4"
            assert simulated_gpu.host == 1  # the host that the clock assumes, and no slower one

        def test_nothing_stays_on():
            assert not torch.cuda.is_available()
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=5, failed=6)
    result.stdout.fnmatch_lines(
        [
            "1 B (1 B) over the limit: on a simulated A100-80GB the test allocates 512 B (512 B), and peak *",
            "* over the limit: on a simulated RTX 4090 the test reserves 2,097,152 B (2 MiB)*",
            "* the test allocates 4,194,304 B (4 MiB)*",
            "@pytest.mark.gpu_memory: unknown GPU 'RTX 9090'; did you mean *",
            "@pytest.mark.gpu_memory: it takes gpu=, peak=, *; not peek",
            "E       assert 1 == 2",
        ]
    )


def test_the_plugin_imports_nothing_until_it_is_used(pytester):
    pytester.makepyfile("import sys\ndef test(): assert 'torch' not in sys.modules and 'numpy' not in sys.modules")
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


# --- the difference of two runs ---------------------------------------------------------------------------

STEP = """
import torch

def forward(x, weight):
    return torch.{function}(x @ weight)

weight = torch.ones(1024, 1024, device="cuda", requires_grad=True)
x = torch.ones({batch}, 1024, device="cuda")
forward(x, weight).sum().backward()
torch.cuda.memory._dump_snapshot("{name}.pickle")
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, function, batch in (("one", "relu", 1024), ("other", "tanh", 4096)):
        text = STEP.format(function=function, batch=batch, name=name)
        (tmp_path / "train.py").write_text("\n" * (name == "other") + text)  # every line one further down
        report = simgpu.run("train.py", out=name)
        assert report.fits
    return tmp_path


def test_what_has_grown_by_line(runs, capsys):
    found = Difference.of("one", "other")
    assert found.grown > 0
    assert sum(row[0] for row in found.rows) == found.grown
    by_line = {(where, operator): more for more, _, _, where, operator, _ in found.rows}
    assert by_line["train.py:9", "ones"] == (4096 - 1024) * 1024 * 4  # x
    assert not any(where == "train.py:8" for where, _ in by_line)  # the weight is what it was
    assert main(["diff", "one", "other"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("The peak of other is ") and "above that of one (simulated A100-80GB)" in text
    assert main(["diff", "other", "one"]) == main(["diff", "one", "one/report.json"]) == 0


def test_snapshots_tell_the_same(runs):
    reports, snapshots = Difference.of("one", "other"), Difference.of("one/snapshot.pickle", "other/snapshot.pickle")
    assert snapshots.grown == reports.grown
    assert ("train.py:9", 12 * 2**20) in {(row[3], row[0]) for row in snapshots.rows}


def test_a_snapshot_beside_a_report(runs):
    """The same run in both forms differs in nothing: the folder's own snapshot is read. A report without one has more
    bytes, rounded up, and the same lines; operator and part, which only a report tells, are left aside."""
    same = Difference.of("one/snapshot.pickle", "one")
    assert (same.rows, same.grown) == ((), 0) and "B asked for" in str(same)
    rows = Difference.of("one", "other/snapshot.pickle").rows
    assert ("train.py:9", 12 * 2**20) in {(row[3], row[0]) for row in rows}
    alone = Difference.of("one/snapshot.pickle", "one/report.json")
    assert 0 <= alone.grown < 4096 and {row[0] for row in alone.rows} <= set(range(1, 4096))
    assert "A snapshot tells the bytes asked for" in str(alone)


def test_a_snapshot_whose_recording_began_late(tmp_path):
    with simgpu.simulated_gpu("T4"):
        before = torch.ones(2**20, device="cuda")
        gone = torch.ones(2**20, device="cuda")
        torch.cuda.memory._record_memory_history()
        del gone
        after = torch.ones(2**21, device="cuda")
        torch.cuda.memory._dump_snapshot(str(tmp_path / "late.pickle"))
        del before, after
    side = Difference.of(tmp_path / "late.pickle", tmp_path / "late.pickle").after
    assert side.peak == 2**22 + 2**23


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (
            [("ATen/native.cpp", 1, "mm"), ("/x/site-packages/torch/nn/a.py", 2, "f"), ("/y/model.py", 3, "g")],
            "model.py:3 in g",
        ),
        ([("/x/site-packages/transformers/t.py", 7, "forward")], "transformers/t.py:7 in forward"),
        ([("C:\\y\\model.py", 3, "g")], "model.py:3 in g"),
        ([], "somewhere that the snapshot does not tell"),
    ],
)
def test_the_line_of_a_stack(frames, place):
    assert place_of([dict(zip(("filename", "line", "name"), one, strict=True)) for one in frames]) == place


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("nothing.pickle", None, "no file and no folder 'nothing.pickle'"),
        ("empty", "", "holds no report.json"),
        ("text.pickle", b"hello", "text.pickle: "),
        ("quiet.pickle", pickle.dumps({"segments": [], "device_traces": [[]]}), "has no events"),
        ("other.json", b"{}", "other.json holds an empty JSON object: wanted the report.json of a run"),
        ("list.json", b"[1]", "list.json holds JSON of type list: wanted the report.json of a run"),
        ("config.json", b'{"model_type": "llama", "vocab_size": 3}', "the keys 'model_type', 'vocab_size': wanted"),
        ("text.json", b"hello", "text.json is not JSON (Expecting value"),
        ("latin.json", "{é}".encode("latin-1"), "latin.json is not JSON ("),
        ("old.json", b'{"outcome": "fits", "gpu": "T4", "lines": []}', "is a report, but of another version of simgpu"),
    ],
)
def test_bad_input_gets_one_line(tmp_path, monkeypatch, capsys, name, content, said):
    monkeypatch.chdir(tmp_path)
    if content == "":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["diff", name, name]) == 2
    written = capsys.readouterr().err
    assert said in written and written.count("\n") == 1
