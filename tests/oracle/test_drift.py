"""`python -m tools.oracle drift`: what differs is sorted by cause, from errors, traces and names."""

import json

import pytest

from simgpu.recording.trace import Event, Stage, Trace
from tools.oracle.drift import causes, command, names, surface, workloads
from tools.oracle.drift.causes import Difference
from tools.oracle.report import Comparison


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("AttributeError: module 'torch._C' has no attribute '_cuda_x'", causes.NAME_GONE),
        ("ImportError: cannot import name '_x' from 'torch.cuda'", causes.NAME_GONE),
        ("TypeError: f() takes from 6 to 9 positional arguments but 11 were given", causes.SIGNATURE),
        ("TypeError: f() got an unexpected keyword argument 'weights_only'", causes.SIGNATURE),
        ("TypeError: _cuda_x(): incompatible function arguments. The following are supported:", causes.SIGNATURE),
        ("simgpu.errors.NotModelledError: aten._foreach_mm is not modelled", causes.NEW_OPERATOR),
        (
            "NotImplementedError: Could not run 'aten::linalg_polar' with arguments from the 'Meta' backend",
            "new operator",
        ),
        ("TypeError: unsupported operand type(s) for +: 'int' and 'str'", causes.OTHER_ERROR),
        ("RuntimeError: shape '[2]' is invalid for input of size 3", causes.OTHER_ERROR),
    ],
)
def test_an_error_has_a_cause(error, cause):
    log = f"Traceback (most recent call last):\n  File ...\nValueError: the first one\n\nTraceback ...\n{error}\n"
    found = causes.of_error(log)
    assert (found.cause, found.peak_error) == (cause, None)
    assert found.what.startswith(error[:60])


def trace(*sizes, where="mm|cuda::allocateCUDABlasWorkspace||a.py:1 f", stats=None, oom=None):
    events = [Event("alloc", size, block, where) for block, size in enumerate(sizes)]
    return Trace(
        "w", events, [Stage("end", len(events), {"allocated_bytes.all.peak": sum(sizes), **(stats or {})})], oom
    )


@pytest.mark.parametrize(
    ("expected", "actual", "cause", "what", "peak_error"),
    [
        (trace(512), trace(512), causes.EQUAL, "", 0),
        (trace(512, 512), trace(512), causes.ALLOCATION, "missing alloc mm cuda::allocateCUDABlasWorkspace", -0.5),
        (trace(512, where="mm_new|||"), trace(), causes.ALLOCATION, "missing alloc mm_new", -1),  # an overload of mm
        (trace(512, where="polar|||"), trace(), causes.NEW_OPERATOR, "missing alloc polar", -1),
        (trace(512, stats={"num_new": 1}), trace(512), causes.COUNTER, "num_new", 0),
        (trace(512, oom="is 3 MiB"), trace(512, oom="is 4 MiB"), causes.TEXT, "'3 MiB' and not '4 MiB'", 0),
        (trace(512, oom="out of memory"), trace(512), causes.TEXT, "'out of memory' and not ''", 0),
    ],
)
def test_two_traces_have_a_cause(expected, actual, cause, what, peak_error):
    found = causes.of_comparison(Comparison(expected, actual), {"mm", "sum"})
    assert (found.cause, found.what, found.peak_error) == (cause, what, peak_error)


@pytest.mark.parametrize(("label", "is_known"), [("sum_dim_IntList", True), ("sum", True), ("summary", False)])
def test_a_label_is_an_operator_with_its_overload(label, is_known):
    assert causes.known(label, {"sum"}) == is_known


FOUND = {
    "a": Difference(causes.ALLOCATION, "missing alloc mm", -0.02, False),
    "b": Difference(causes.EQUAL, "", 0.0, True),
    "c": Difference(causes.ALLOCATION, "missing alloc mm", 0.0, True),
    "d": Difference(causes.NAME_GONE, "AttributeError: x"),
    "e": Difference(causes.ALLOCATION, "extra alloc sum", 0.0, True),
}


def test_groups_and_counts():
    """What breaks comes first, then what is most frequent."""
    assert causes.grouped(FOUND) == [
        (causes.NAME_GONE, "AttributeError: x", ["d"]),
        (causes.ALLOCATION, "missing alloc mm", ["a", "c"]),
        (causes.ALLOCATION, "extra alloc sum", ["e"]),
    ]
    assert causes.counts(FOUND.values()) == {
        "workloads": 5,
        "equal in every event": 1,
        "equal peaks": 3,
        "equal reserved peaks": 3,
        "failed": 1,
        "peaks off by more than 1 %": 1,
        "worst peak, ppm": 20_000,
    }


def test_a_sample_is_always_the_same_and_a_larger_one_has_it_in_it():
    every = [f"workload_{i}" for i in range(30)]
    small, large = workloads.sample(every, 5), workloads.sample(every, 12)
    assert len(small) == 5 and set(small) < set(large) and small == workloads.sample(every[::-1], 5)[::-1]
    assert workloads.sample(every, None) == workloads.sample(every, 99) == every
    with pytest.raises(ValueError, match="--sample 0: one workload or more"):
        workloads.sample(every, 0)


def surface_of(**changed):
    found = {
        "missing": {},
        "replaced": {"torch._C._cuda_f": "_cuda_f(arg0: bool) -> None", "torch.cuda.made_up": None},
        "operators": {"aten::cdist": "aten::cdist(Tensor grad) -> Tensor", "aten::qr": "aten::qr(Tensor x) -> Tensor"},
        "bindings": ["_cuda_f"],
    }
    return found | changed


def test_names_signatures_and_operators_are_compared():
    after = surface_of(
        missing={"torch.cuda._old": "simgpu/x.py:3"},
        replaced={"torch._C._cuda_f": "_cuda_f(arg0: bool, arg1: bool) -> None", "torch.cuda.made_up": None},
        operators={"aten::cdist": "aten::cdist(Tensor grad_output) -> Tensor", "aten::polar": "aten::polar() -> ()"},
        bindings=["_cuda_f", "_cuda_g"],
    )
    assert names.differences(surface_of(), surface_of()) == []
    found = names.differences(surface_of(), after)
    assert [(cause, what.split()[0]) for cause, what in found] == [
        (causes.NAME_GONE, "torch.cuda._old"),
        (causes.SIGNATURE, "torch._C._cuda_f:"),
        (causes.SIGNATURE, "aten::cdist(Tensor"),
        (causes.NAME_GONE, "aten::qr"),
        (causes.NEW_OPERATOR, "torch._C._cuda_g"),
        (causes.NEW_OPERATOR, "aten::polar"),
    ]


def test_names_that_code_uses_are_read_from_its_source(tmp_path):
    (tmp_path / "a.py").write_text(
        "import torch\nfrom torch.utils import _device as d\nd.CURRENT_DEVICE\ntorch._C._no_such_name()\n"
    )
    used = surface.used_names(tmp_path)
    assert {"torch.utils._device", "torch.utils._device.CURRENT_DEVICE", "torch._C._no_such_name"} <= set(used)
    assert [name for name in used if not surface.exists(name)] == ["torch._C._no_such_name"]


def test_the_result_becomes_a_page():
    result = {
        "torch": "2.15.0",
        "compared with": "2.13.0",
        "names": [(causes.NAME_GONE, "torch._C._x")],
        "gpus": {"H100": {"counts": causes.counts(FOUND.values()), "differences": causes.grouped(FOUND)}},
    }
    page = command.page(json.loads(json.dumps(result)))
    assert "| equal in every event | 1 |" in page and "| private name gone | `torch._C._x` |" in page
    assert "| allocation changed | 2 | missing alloc mm | a, c |" in page
