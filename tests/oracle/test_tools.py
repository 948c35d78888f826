"""The comparer's own parts: streams are laid side by side, traces are kept, stacks are read."""

import gzip
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.gpus import specs
from simgpu.recording.trace import Event, Stage, Trace
from simgpu.stub import devices
from tools import course
from tools.oracle import __main__ as command
from tools.oracle import labels
from tools.oracle.align import hunks
from tools.oracle.report import Comparison, report


def stream(text):
    """An event for each letter: its size is the letter's code."""
    return [Event("alloc", ord(letter), i, "op|f|node|line") for i, letter in enumerate(text)]


def trace(text, stats=None, oom=None):
    events = stream(text)
    return Trace("letters", events, [Stage("end", len(events), stats or {})], oom)


@given(st.text("abc", max_size=60), st.text("abc", max_size=60))
def test_hunks_turn_one_stream_into_the_other(left, right):
    rebuilt, at = "", 0
    for a, b, c, d in hunks(stream(left), stream(right)):
        assert left[at:a] == right[c - (a - at) : c]
        rebuilt += left[at:a] + right[c:d]
        at = b
    assert rebuilt + left[at:] == right


def test_hunks_of_long_streams_with_many_repeats():
    draw = random.Random(0)
    layer = "".join(draw.choice("abcdefgh") for _ in range(50))
    left = layer * 200
    right = list(left)
    places = sorted(draw.sample(range(len(left)), 40), reverse=True)
    for place in places:
        right.insert(place, "X")
    found = list(hunks(stream(left), stream("".join(right))))
    assert sum(d - c for _, _, c, d in found) == 40 and sum(b - a for a, b, _, _ in found) == 0


def test_a_trace_survives_its_file(tmp_path):
    events = [
        Event("segment_alloc", 2097152, -1, "randn|f||a.py:1 g"),
        Event("alloc", 40, 0, "randn|f||a.py:1 g"),
        Event("alloc", 80, 1, "mm|g|MmBackward0|"),
        Event("free_completed", 40, 0, ""),
        Event("free_requested", 80, 1, ""),
        Event("oom", 4096, -1, "empty|||"),
    ]
    stages = [Stage("one", 2, {"allocated_bytes.all.current": 512}), Stage("two", 6, {"num_ooms": 1})]
    original = Trace("name", events, stages, "CUDA out of memory.", {"gpu": "H100"})
    original.save(tmp_path / "name.json.gz")
    loaded = Trace.load(tmp_path / "name.json.gz")
    assert loaded.events == events
    assert (loaded.workload, loaded.oom, loaded.provenance) == ("name", "CUDA out of memory.", {"gpu": "H100"})
    assert [(s.name, s.at, s.allocated, s.stats["num_ooms"]) for s in loaded.stages] == [
        ("one", 2, 512, 0),
        ("two", 6, 0, 1),
    ]


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"no JSON"), gzip.compress(b"[]"), gzip.compress(b'{"format": 1}')],
    ids=["no gzip", "no JSON", "no object", "no trace"],
)
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "broken.json.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.json\.gz is not a trace"):
        Trace.load(path)


def test_another_format_is_refused(tmp_path):
    path = tmp_path / "later.json.gz"
    path.write_bytes(gzip.compress(b'{"format": 99}'))
    with pytest.raises(ValueError, match="format 99, wanted 1"):
        Trace.load(path)


CPP = [
    "torch::unwind::unwind()",
    "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)",
    "at::detail::empty_cuda(c10::ArrayRef<long>, c10::TensorOptions const&)",
    "at::native::clone(at::Tensor const&, std::optional<c10::MemoryFormat>)",
    "at::_ops::clone::call(at::Tensor const&, std::optional<c10::MemoryFormat>)",
    "at::native::(anonymous namespace)::prepare_matrix_for_cublas(at::Tensor const&, bool&)",
    "at::_ops::mm::redispatch(c10::DispatchKeySet, at::Tensor const&, at::Tensor const&)",
    "at::_ops::matmul::call(at::Tensor const&, at::Tensor const&)",
]


def frames(*names):
    return [{"filename": "??", "line": 0, "name": name} for name in names]


def test_where_names_operators_function_and_line():
    python = [{"filename": "/usr/lib/model.py", "line": 12, "name": "forward"}, *frames("at::_ops::outside::call()")]
    assert labels.where(frames(*CPP) + python) == "matmul/mm|native::clone||model.py:12 forward"


def test_where_names_the_autograd_node():
    node = "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)"
    engine = "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)"
    assert labels.where(frames(*CPP, node, engine)) == "matmul/mm|native::clone|MmBackward0|"
    assert labels.where(frames(CPP[0], engine)) == "||Engine.evaluate_function|"
    assert labels.where([]) == "|||"


def test_report_names_what_is_missing_and_what_moved():
    text = report(Comparison(trace("abcdefghijklmnop"), trace("abcdfghijklmnope")), limit=3)
    assert "1 moved of 16 events" in text
    text = report(Comparison(trace("abcdef"), trace("abdefX")))
    assert "1 missing, 1 extra of 6 events" in text and "op f node: 99" in text


def test_counters_and_errors_count_too():
    equal = Comparison(trace("abc", {"num_ooms": 1}, "text"), trace("abc", {"num_ooms": 1}, "text"))
    assert equal.equal and report(equal).startswith("EQUAL")
    counters = Comparison(trace("abc", {"num_ooms": 1}), trace("abc", {"num_ooms": 0}))
    assert not counters.equal and "num_ooms at end: 1 there, 0 here" in report(counters)
    assert not Comparison(trace("abc", oom="a"), trace("abc", oom="b")).equal


def test_casts_that_autocast_kept_go_in_any_order():
    def freed(*sizes):
        out = "|autograd::clear_autocast_cache||autocast_mode.py:349 __exit__"
        events = [Event("alloc", size, i, "") for i, size in enumerate((1, 2))]
        events += [Event("free_completed", size, size - 1, out) for size in sizes]
        return Trace(
            "autocast", events, [Stage("end", 4, {"inactive_split.all.peak": sizes[0], "active.all.current": 7})]
        )

    comparison = Comparison(freed(1, 2), freed(2, 1))
    assert comparison.equal and "order of 2 frees" in comparison.verdict()
    assert not Comparison(freed(1, 2), freed(2, 2)).equal


@pytest.mark.parametrize("gpu", specs.SPECS)
def test_the_stubs_can_be_any_gpu(gpu):
    variables = devices.environment(gpu)
    assert variables["MOCK_NAME"] == specs.spec(gpu).name and all(isinstance(v, str) for v in variables.values())


def test_an_unknown_gpu_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"A100-80GB.*H100"):
        devices.environment("Voodoo2")


def test_the_notebooks_run_on_the_oracle_as_course_py_runs_them_on_a_gpu(monkeypatch):
    def in_this_process(version, gpu, arguments):
        monkeypatch.setattr(sys, "argv", ["-c", *arguments[2:]])
        with pytest.raises(SystemExit) as end:
            exec(arguments[1], {})
        return end.value.code

    given = []
    monkeypatch.setattr(command.runner, "run", in_this_process)
    monkeypatch.setattr(course, "command_gpu", lambda python, arguments: given.append((python, arguments)) or 3)
    assert command.main(["notebooks", "--gpu", "H100", "notebooks/03_a.ipynb", "-x"]) == 3
    assert given == [(Path(sys.executable), ["notebooks/03_a.ipynb", "-x"])]
