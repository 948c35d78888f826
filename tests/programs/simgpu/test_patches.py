"""Holds patches to names that exist, and the manifest to what entering a simulated GPU changes."""

import re
import subprocess
import sys
import types
from collections import defaultdict
from pathlib import Path

import pytest
import torch

import simgpu
from simgpu import patches, session
from simgpu.command import main
from simgpu.device import machine
from simgpu.patch_manifest import Manifest
from simgpu.torch_patches import cuda_c_api
from simgpu.used_names import known_to_python


class Base:
    inherited = 1


class Owner(Base):
    own = 2


def test_a_name_that_exists_is_replaced_and_restored():
    changed = patches.Patches()
    changed.apply(Owner, "own", 3)
    changed.apply(Owner, "inherited", 4)
    assert (Owner.own, Owner.inherited, Base.inherited) == (3, 4, 1)
    changed.undo()
    assert (Owner.own, Owner.inherited) == (2, 1) and "inherited" not in vars(Owner)


def test_a_name_that_does_not_exist_is_an_error_that_names_both_places():
    module, changed = types.ModuleType("a.module"), patches.Patches()
    for owner, name in ((module, "a.module"), (Owner, f"{Owner.__module__}.Owner")):
        with pytest.raises(
            AttributeError, match=rf"^{name} has no attribute 'gone', and .*test_patches\.py:\d+ replaces"
        ):
            changed.apply(owner, "gone", 1)
        assert not hasattr(owner, "gone")
    assert changed.replaced() == []
    changed.undo()


def test_a_name_may_be_new_for_a_reason():
    changed = patches.Patches()
    changed.apply(Owner, "fresh", 1, new="a later version has it")
    assert vars(Owner)["fresh"] == 1
    changed.undo()
    assert not hasattr(Owner, "fresh")


def test_what_is_recorded():
    changed = patches.Patches()
    with patches.recorded() as found:
        changed.apply(Owner, "own", 3)
        changed.apply(Owner, "gone", 3)
        with patches.recorded() as inner:
            changed.apply(Owner, "inherited", 3, new="a reason")
    changed.undo()
    assert [(one.owner, one.name, one.exists, one.new) for one in (*found, *inner)] == [
        (Owner, "own", True, ""), (Owner, "gone", False, ""), (Owner, "inherited", True, "a reason")
    ]  # fmt: skip
    assert found[0].place.startswith("tests/programs/simgpu/test_patches.py:")


def test_a_gpu_that_cannot_be_entered_leaves_torch_as_it_was(monkeypatch):
    """A version of PyTorch that lacks a replaced name."""
    monkeypatch.setattr(session.loading, "patch", lambda given: given.apply(torch.cuda, "not_in_any_torch", None))
    before = torch.cuda.is_available, torch.Tensor.record_stream, dict(vars(torch._C))
    with pytest.raises(AttributeError, match=r"^torch\.cuda has no attribute 'not_in_any_torch'"):
        simgpu.simulated_gpu("T4").__enter__()
    assert (torch.cuda.is_available, torch.Tensor.record_stream, dict(vars(torch._C))) == before


def test_every_missing_name_is_one_of_builds_for_cuda():
    """Those that this torch lacks have a reason, and PyTorch's own Python code knows each of them."""
    manifest = Manifest.of_entering()
    assert manifest.gone() == []
    assert {row.new for row in manifest.rows if not row.exists} <= {
        "only a build for CUDA has it",
        "only a build with NCCL has it",
        "each instance has it, and not the class",
    }


def state_of_torch():
    """What modules of torch hold, by dotted name; a submodule is not among them, since importing one adds it."""
    return {
        f"{name}.{attribute}": value
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "torch" and isinstance(module, types.ModuleType) and module.__name__ == name
        for attribute, value in list(vars(module).items())
        if not issubclass(type(value), types.ModuleType) and not attribute.startswith("__")
    }


def test_what_modules_of_torch_hold_differently_inside_is_in_the_manifest():
    with simgpu.simulated_gpu("T4"):
        pass  # imports what is imported at the first time
    manifest = Manifest.of_entering()
    before = state_of_torch()
    with simgpu.simulated_gpu("T4"):
        inside = state_of_torch()
    changed = {name for name, value in inside.items() if name not in before or before[name] is not value}
    known = {row.name for row in manifest.rows}
    assert len(changed & known) > 150
    flags = "torch.utils._python_dispatch._is_in_"  # PyTorch's own, that a dispatch mode is on
    assert {name for name in changed - known if not name.startswith(flags)} == set()


def test_the_command_prints_each_attribute_with_its_place(capsys):
    assert main(["patches"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{len(rows)} attributes are replaced, of which torch {torch.__version__} lacks ")
    place = next(row for row in rows if row.startswith("torch.Tensor.record_stream ")).split()
    assert place[1] == "exists" and place[2].startswith("simgpu/torch_patches/attributes.py:")


def test_names_that_the_installed_torch_lacks_are_drift(monkeypatch, capsys):
    added = {"_cuda_not_in_any_torch": lambda *given: None}
    functions = cuda_c_api.functions
    monkeypatch.setattr(cuda_c_api, "functions", lambda machine: functions(machine) | added)
    monkeypatch.setattr(session.loading, "patch", lambda given: given.apply(torch.cuda, "gone_from_torch", None))
    assert main(["patches", "--missing"]) == 1
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith(f"torch {torch.__version__} lacks 2 of ")
    assert [row.split()[:2] for row in rows] == [
        ["torch._C._cuda_not_in_any_torch", "missing"], ["torch.cuda.gone_from_torch", "missing"]
    ]  # fmt: skip


@pytest.mark.usefixtures("forked_programs")
def test_every_used_name_that_is_gone_is_listed_with_its_place():
    """Also those that simgpu needs when it is imported, and all of them at once."""
    code = (
        "import sys, torch; from simgpu.command import main\n"
        "del torch._C._current_graph_task_id, torch._C._current_autograd_node\n"
        "from simgpu import used_names; used_names.known_to_python = lambda names: set()\n"
        "sys.exit(main(['patches', '--missing']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    for name in ("_current_graph_task_id", "_current_autograd_node"):
        assert re.search(rf"^torch lacks torch\._C\.{name}, which is used at simgpu/[\w/]+\.py:\d+$", done.stdout, re.M)


def test_an_attribute_that_is_read_before_it_is_replaced_and_is_gone(monkeypatch):
    monkeypatch.setattr(session.loading, "patch", lambda given: torch.cuda.gone_from_torch)
    (said,) = Manifest.of_entering().gone()
    start, end = "entering a simulated GPU fails at ", ": module 'torch.cuda' has no attribute 'gone_from_torch'"
    assert re.fullmatch(rf"{start}simgpu/session\.py:\d+{end}", said)


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("torch._C._cuda_getDevice", True),  # in its stub
        ("torch._C._cudart", True),  # an attribute, in torch/cuda/__init__.py
        ("torch._C._fits", False),
        ("torch._C._find", False),  # a word of other code
        ("torch.cuda._get_device_properties", True),
    ],
)
def test_what_pytorchs_own_code_knows(name, is_known):
    assert (known_to_python({name}) == {name}) == is_known


def test_each_function_of_c_is_one_of_its_own():
    """torch._dynamo registers handlers for some of them, and refuses a second one for an equal function."""
    with simgpu.simulated_gpu("T4"):
        found = cuda_c_api.functions(machine.on())
    names = defaultdict(list)
    for name, function in found.items():
        names[function].append(name)
    assert [same for same in names.values() if len(same) > 1] == []
