"""Checks what `simgpu explain` prints of an operator, and that it reads every table."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from simgpu import explain
from simgpu.command import main
from simgpu.cpu_reference import cpu_call
from simgpu.ops import dispatcher, op_call
from tests.pinned import of_pinned_torch

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "data" / "operators_explained.txt"
ASKED = {(one.module.__name__, one.variable) for one in explain.TABLES}
# Names of operators that are no registry of their own: from what they are made, or what they are for.
DERIVED = {
    ("simgpu.op_info.composite_explicit", "_MAKE"): "a part of _PLAIN",
    ("simgpu.op_info.composite_explicit", "_MAKE_NEW"): "a part of _PLAIN",
    ("simgpu.op_info.composite_explicit", "_WRITE"): "a part of _PLAIN",
    ("simgpu.op_info.composite_explicit", "_SEE"): "a part of _PLAIN",
    ("simgpu.dispatch.costs", "_EXTRA"): "PRODUCTS and FACTORIZATIONS of extra_flops",
    ("simgpu.shapes.optimizers", "_NAMES"): "_UNARY and _MORE",
    ("simgpu.checks.overlaps", "_ALLOWED"): "the four texts of names",
    ("simgpu.checks.devices", "_NAMES_OF_THESE"): "_ONE_DEVICE",
    ("simgpu.shapes.meta_kernels", "_kernels"): "PyTorch's own meta kernels in C++",
    ("simgpu.shapes.meta_kernels", "_take_numbers"): "PyTorch's own meta kernels in C++",
    ("simgpu.shapes.meta_kernels", "_take_number_first"): "PyTorch's own meta kernels in C++",
    ("simgpu.ops.autocast", "_known"): "operators of libraries that were met",
    ("simgpu.dispatch.costs", "unread"): "operators that were met and not counted",
    ("simgpu.storage.values", "_ALLOCATING"): "parts of names",
    ("simgpu.autograd.formulas", "GUESSES"): "the field formula_guess",
    ("simgpu.op_info.op_spec", "_specs"): "the records themselves",
    ("simgpu.distributed.refused", "KINDS"): "kinds of collectives",
    ("simgpu.distributed.kinds", "KINDS"): "kinds of collectives",
    ("simgpu.distributed.works", "ONE_WAY"): "kinds of collectives",
    ("simgpu.distributed.replay", "ONE_WAY"): "kinds of collectives",
    ("simgpu.dispatch.costs", "TO_GPU"): "a name of the clock's",
    ("simgpu.dispatch.costs", "TO_HOST"): "a name of the clock's",
    ("simgpu.dispatch.dispatch_mode", "TO_HOST"): "a name of the clock's",
}
ROOMS = (
    *("storage", "checks", "shapes", "autograd", "op_info", "ops", "dispatch", "cpu_reference", "distributed"),
    *("unmodeled", "handlers"),
)


def is_operator(one, names):
    if isinstance(one, str):
        return one.removeprefix("aten::") in names
    return isinstance(one, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))


def names_operators(value, names):
    """Whether a variable holds operators, or names of which most are those of operators."""
    if isinstance(value, str):
        value = value.split() if len(value.split()) > 1 else ()
    if not isinstance(value, (dict, set, frozenset, tuple, list)) or not value:
        return False
    found = [one for one in value if is_operator(one, names)]
    return len(found) > 0.4 * len(value)


def test_every_table_is_read():
    known = explain._known_names()
    names = {name for space in ("aten", "c10d") for name in known[space]}
    names |= {f"{name}.{one}" for name, overloads in known["aten"].items() for one in overloads}
    found = {
        (name, variable)
        for name, module in sys.modules.items()
        if name.startswith(tuple(f"simgpu.{room}" for room in ROOMS))
        for variable, value in vars(module).items()
        if not variable.startswith("__") and names_operators(value, names)
    }
    assert len(found) > 50
    assert sorted(found - ASKED - DERIVED.keys()) == []


def all_operators():
    for space in explain.NAMESPACES:
        for name, overloads in explain._known_names()[space].items():
            yield from (explain._overload(space, name, one) for one in overloads)


@of_pinned_torch
def test_every_name_in_a_table_is_that_of_an_operator():
    """A name that no operator of this torch has would be a typo, or of a torch that is no longer supported."""
    given = list(all_operators())
    for asked in explain.TABLES:
        known = {key for operator in given for key in asked.keys(operator)}
        held = set(explain._held(asked))
        assert held & known, f"{asked.variable} has no operator"
        assert {one for one in held if isinstance(one, str)} <= known, asked.variable


@of_pinned_torch
def test_the_stored_text_is_what_explain_prints():
    """`python -m simgpu explain --all > tests/data/operators_explained.txt` renews it."""
    stored, now = GOLDEN.read_text(encoding="utf-8").splitlines(), explain.everything().splitlines()
    assert "\n".join(difflib.unified_diff(stored, now, "stored", "now", n=2, lineterm="")) == ""


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("aten::sort", ["check", "check", "shapes", "memory", "time", "time", "time"]),
        ("sort", ["check", "check", "shapes", "memory", "time", "time", "time"]),
        ("aten.sort.default", ["check", "check", "shapes", "memory", "time", "time", "time"]),
        (
            "aten::_scaled_dot_product_efficient_attention",
            ["check", "check", "memory", "memory", "time", "values=True"],
        ),
        ("aten::masked_fill_.Tensor", ["placement", "check", "check", "check", "time", "backward"]),
    ],
)
@of_pinned_torch
def test_what_an_operator_has_comes_in_the_order_of_a_call(name, stages):
    assert [one.stage for one in explain.entries(explain.named(name)[0])] == stages


@pytest.mark.parametrize("name", ["sort", "convolution", "native_layer_norm", "add.Tensor", "dropout", "embedding"])
def test_file_and_line_are_where_it_is_defined(name):
    for operator in explain.named(name):
        for entry in explain.entries(operator):
            path = ROOT / entry.file
            if not entry.line or not path.exists():
                continue  # a table of data, or torch's own
            lines = path.read_text(encoding="utf-8").splitlines()[entry.line - 1 :]
            word = entry.name.partition(":")[0].rpartition(".")[2]
            defined = next(line for line in lines if not line.startswith(("@", "    ")) or "def " in line)
            declares = re.search(r"\b(mark|declare|decomposition)\(", lines[0])  # where it is not a function
            assert declares or re.search(rf"\b{word}\b", defined), (entry, defined)


def test_the_command_prints_rules_with_their_places(capsys):
    assert main(["explain", "aten::native_layer_norm"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("aten::native_layer_norm (kernel)\n")
    assert re.search(r"memory +rule +simgpu/ops/norms\.py:\d+  layer_norm\n +Rule of layer_norm_cuda", printed)


@pytest.mark.parametrize(
    ("name", "happens"),
    [
        ("aten::narrow", "composite"),
        ("aten::expand", "view"),
        ("aten::erfinv", "outputs only"),
        ("aten::nonzero", "shapes of values"),
        ("aten::narrow_copy.out", "absent"),
    ],
)
def test_what_happens_where_there_is_no_rule_is_said(name, happens, capsys):
    assert main(["explain", name]) == 0
    assert explain.HAPPENS[happens] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["aten::sotr"], "has no operator 'aten::sotr'; did you mean aten::sort"),
        (["layer_nrm"], "did you mean aten::layer_norm"),
        (["aten::sort.x"], "no overload 'x'"),
        (["quantum::add"], "has no operator 'quantum::add'"),
        (["all_gather_into_tensor"], "is ambiguous: _c10d_functional::all_gather_into_tensor, "),
        ([], "wanted an operator"),
        (["aten::sort", "--all"], "wanted an operator"),
    ],
)
def test_a_wrong_name_is_an_error_with_near_ones(arguments, said, capsys):
    assert main(["explain", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("simgpu explain: ") and said in error and error.count("\n") == 1


def test_explaining_changes_nothing_for_a_simulated_gpu_that_follows():
    """Some operators are composite while no shapes are registered for them, and kernels on a simulated GPU."""
    code = (
        "import sys, torch, simgpu; from simgpu import explain; from simgpu.dispatch import stages\n"
        "before = torch._C._dispatch_dump('aten::mish_backward')\n"
        "assert explain.explained('aten::mish_backward').startswith('aten::mish_backward (kernel)')\n"
        "assert torch._C._dispatch_dump('aten::mish_backward') == before\n"
        "with simgpu.simulated_gpu('T4'):\n"
        "    assert stages.traits_of(torch.ops.aten.mish_backward.default).kind == 'kernel'\n"
        "assert 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("register", "name", "what"),
    [
        (op_call.rule, "mm.default", "rules"),
        (op_call.refuses, "max.default", "refusals"),
        (op_call.decomposition, "_trilinear.default", "decompositions"),
        (dispatcher.meta, "_fused_sgd_", "shapes"),
        (dispatcher.cuda_composite, "softmax.int", "CUDA composites"),
        (cpu_call.cpu_impl, "mm.dtype", "computations on the CPU"),
    ],
)
def test_an_operator_is_registered_once(register, name, what):
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    before = str(explain.entries(operator))
    with pytest.raises(ValueError, match=f"two {what} for aten.{re.escape(packet)}"):
        register(name)(lambda *_: None)
    assert str(explain.entries(operator)) == before
