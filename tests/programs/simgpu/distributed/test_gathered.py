"""Parameters that FSDP gathers are memory of their own kind, as rank 0 of 8: neither activations nor parameters."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import simgpu
from simgpu.report.owners import ACTIVATIONS, DATA, GATHERED, GRADIENTS, OF_FSDP, PARAMETERS, REDUCED, of_fsdp
from simgpu.report.report import Report
from simgpu.running.stub import history
from simgpu.stub import engine

dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")

RANKS, LAYERS, WIDE = 8, 4, 1024
SHARD = 4 * (2 * WIDE * 4 * WIDE + 4 * WIDE + WIDE) // RANKS
"""Bytes of a rank's shard of one layer, which divides evenly."""
MIB = 2**20


SCRIPT = Path(__file__).parents[3] / "data" / "scripts" / "ranks" / "gathered.py"
WAYS = pytest.mark.parametrize("version", ["fsdp2", "fsdp1", "fsdp1_with_its_parameters"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns a function that trains as rank 0 in a process of its own and returns the report, once for equal runs."""

    @cache
    def run(version, dtype, batch=64, memory="80 GiB") -> Report:
        out = tmp_path_factory.mktemp("ranks") / "out"
        command = [sys.executable, "-m", "simgpu", "run", "--engine", "meta", "--gpu", "H100", "--memory", memory]
        command += ["--ranks", str(RANKS), "--rank", "0", "--out", str(out), str(SCRIPT), version, dtype, str(batch)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (out / "report.json").exists(), done.stderr
        return Report.load(out / "report.json")

    return run


@WAYS
@pytest.mark.usefixtures("forked_programs")
def test_whole_layers_are_their_own_kind(trained, version):
    report = trained(version, "bfloat16")
    assert report.completed
    whole = RANKS * SHARD // 2
    assert report.parts[GATHERED] >= whole and report.parts[GATHERED] % whole < MIB  # whole layers, in blocks of 512 B
    assert report.parts[PARAMETERS] == pytest.approx(LAYERS * SHARD, abs=MIB // 16)
    forward = [kind for kind in kinds(report) if kind[3] in ("forward", "without gradients")]
    kept = [kind for kind in forward if kind[1] in (ACTIVATIONS, DATA) and kind[0] >= MIB * 2]
    assert kept == []  # 64 vectors of 4 * 1024 numbers are 1 MiB
    assert {kind[0] for kind in kinds(report) if kind[1] == GATHERED} >= {block(whole)} or version == "fsdp2"
    assert sum(one.gathered for one in report.modules) == report.parts[GATHERED]


@WAYS
def test_a_second_run_in_the_same_process(version):
    """What FSDP leaves alive of the first run is not looked at by the second."""
    options = {"gpu": "H100", "ranks": RANKS, "rank": 0}
    first, second = (simgpu.run(SCRIPT, [version, "bfloat16", "64"], **options) for _ in range(2))
    assert second.completed, second.ended
    assert (second.peak, second.parts, second.modules) == (first.peak, first.parts, first.modules)


def kinds(report):
    track = report.timeline
    return [(size, *(track.names[at] for at in rest)) for size, *rest in track.kinds]


def block(nbytes: int) -> int:
    return -(-nbytes // 512) * 512


@WAYS
@pytest.mark.usefixtures("forked_programs")
def test_what_is_reduced_and_what_comes_out_of_it(trained, version):
    """The buffers are neither temporaries nor gradients, and the shard that comes out of them is a gradient."""
    found = kinds(trained(version, "bfloat16"))
    assert {kind[0] for kind in found if kind[1] == REDUCED} >= {block(RANKS * SHARD)}
    assert {kind[0] for kind in found if kind[1] == GRADIENTS and kind[3] == "backward"} >= {block(SHARD)}


@WAYS
@pytest.mark.usefixtures("forked_programs")
def test_a_module_that_holds_whole_parameters_when_memory_runs_out(trained, version):
    report = trained(version, "float32", batch=2**16, memory="2 GiB")
    assert report.outcome == "does not fit" and report.at.stage == "forward"
    assert report.parts[PARAMETERS] == pytest.approx(LAYERS * SHARD, abs=MIB // 16)
    assert report.parts[GATHERED] >= RANKS * SHARD


@pytest.mark.skipif(
    bool(engine.supported()) or engine.unpacked(engine.DEFAULT_VERSION) is None,
    reason="the stub engine of torch 2.13.0 is not installed: simgpu engine install --torch 2.13.0",
)
@WAYS
def test_a_real_build_has_as_much_of_each_kind(trained, version):
    options = {"engine": "stub", "torch_version": engine.DEFAULT_VERSION, "gpu": "H100", "ranks": RANKS, "rank": 0}
    real = simgpu.run(SCRIPT, [version, "bfloat16", "64"], **options)
    assert real.completed, real.ended
    assert (real.peak, real.parts) == ((simulated := trained(version, "bfloat16")).peak, simulated.parts)


def test_the_memory_history_of_a_real_build_is_read_alike():
    """The stub engine knows stacks instead of calls; a module may hold what is gathered when it is asked."""
    windows = history.Windows([("backward", 10, 20)])
    folder = f"{Path(dist.__file__).parent}/fsdp/"

    def part(owner, *functions):
        frames = [{"filename": folder + file, "name": name, "line": 1} for file, name in functions]
        return history.part(history.Block(12, 0, 512, frames, False, owner=owner), windows, False, frozenset())

    gathers = ("_flat_param.py", "_alloc_padded_unsharded_flat_param")
    reduces = ("_fully_shard/_fsdp_collectives.py", "foreach_reduce")
    assert [part(owner, gathers) for owner in (None, PARAMETERS)] == [GATHERED, GATHERED]
    assert [part(owner, reduces) for owner in (None, GRADIENTS)] == [REDUCED, GRADIENTS]
    assert part(PARAMETERS, ("_flat_param.py", "_get_shard")) == PARAMETERS


def test_the_functions_are_those_of_this_torch():
    """A release that renames one would move what it allocates to another kind."""
    files = {path.name: path for path in Path(dist.__file__).parent.glob("fsdp/**/*.py")}
    for file, function in OF_FSDP:
        assert re.search(rf"^\s*def {function}\(", files[file].read_text(encoding="utf-8"), re.MULTILINE), function
        assert of_fsdp(str(files[file]), function) == OF_FSDP[file, function]
    assert of_fsdp("mine/torch/_flat_param.py", "_alloc_padded_unsharded_flat_param") is None
