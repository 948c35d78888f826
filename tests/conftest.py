"""The accuracy ladder's results: `pytest --exactness docs/exactness.json` writes them, other runs are held to them."""

import gc
import os
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from labkit.gpu import UNIFIED
from tests import exactness as ladder
from tests import forked
from tools.notebook_rules import code_cells

# `pytest tests -m fast`: a look at each room, and the oracle's traces that are quickest to replay.
FAST = (
    "course/test_formulas.py",
    "oracle/test_rules_moves.py",
    "programs/simgpu/test_session.py",
    "project/test_examples.py",
    "unit/labkit/test_units.py",
    "unit/simgpu/test_allocator.py",
    "unit/simgpu/test_arguments.py",
    "unit/simgpu/test_cublas.py",
    "unit/simgpu/test_cuda.py",
    "unit/simgpu/test_facade.py",
    "unit/simgpu/test_snapshot.py",
    "unit/simgpu/test_specs.py",
    "unit/simgpu/test_streams.py",
)
# The files that take longest, of tests/ and of notebooks/, longest first: they are begun first, so that where two tests
# run at a time no long one is left for the end. The others come in the order of their names.
LONGEST = (
    "tests/oracle/test_simulated.py",
    "tests/programs/simgpu/test_processes.py",
    "notebooks/10_gradient_checkpointing.ipynb",
    "notebooks/23_will_it_fit.ipynb",
    "notebooks/22_planning_a_large_run.ipynb",
    "notebooks/19b_how_large_a_model.ipynb",
    "notebooks/09_gradient_accumulation.ipynb",
    "tests/programs/simgpu/test_fit.py",
    "tests/oracle/test_op_info.py",
    "tests/oracle/test_ranks.py",
    "tests/programs/simgpu/test_files.py",
    "notebooks/23b_which_technique_first.ipynb",
    "notebooks/21_pipeline_parallel.ipynb",
    "notebooks/12_optimizers.ipynb",
    "notebooks/00_out_of_memory.ipynb",
    "notebooks/25_published_figures.ipynb",
    "notebooks/19_zero_and_fsdp.ipynb",
    "tests/programs/simgpu/test_examples_of_ranks.py",
    "notebooks/14b_everything_together.ipynb",
    "tests/programs/simgpu/test_sizes_of_values.py",
    "tests/oracle/test_rules.py",
    "tests/course/test_times.py",
    "tests/programs/simgpu/distributed/test_gathered.py",
    "tests/programs/simgpu/test_interrupts.py",
    "tests/programs/simgpu/distributed/test_foreign.py",
    "tests/programs/simgpu/distributed/test_fit_of_experts.py",
    "notebooks/11_mixed_precision.ipynb",
    "tests/programs/simgpu/test_run.py",
    "tests/programs/simgpu/test_findings.py",
    "notebooks/20_tensor_parallel.ipynb",
)
SECOND_GPU = ("test_op_info.py", "test_rules.py", "test_simulated.py")
SCHEDULED = ("everywhere", "browser", "site")  # marks of tests that run only with the option of that name
PROPERTY = "exactness"
CHAPTER = "24_how_exact_is_this.ipynb"  # it shows the page, so it is not on it


def pytest_addoption(parser):
    parser.addoption(
        "--everywhere",
        action="store_true",
        help="notebooks on every GPU, twice, at other sizes; comparisons on a second GPU; types",
    )
    parser.addoption("--browser", action="store_true", help="look at the playground and the slides in Chromium")
    parser.addoption("--site", action="store_true", help="build the whole site, in both languages")
    parser.addoption("--exactness", type=Path, metavar="PATH", help="write what the accuracy ladder's tests find")


def pytest_configure(config):
    path = config.getoption("--exactness")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(path))


def pytest_collection_modifyitems(config, items):
    for item in items:
        if is_on_a_second_gpu(item):
            item.add_marker(pytest.mark.everywhere)
    scheduled = [mark for mark in SCHEDULED if not config.getoption(f"--{mark}")]
    slow = [item for item in items if any(mark in item.keywords for mark in scheduled)]
    items[:] = [item for item in items if item not in slow]
    if slow:
        config.hook.pytest_deselected(items=slow)
    rank = {config.rootpath / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    fast = {Path(__file__).parent / name for name in FAST}
    absent = [str(path) for path in (*rank, *fast) if not path.exists()]
    assert not absent, f"FAST or LONGEST names files that do not exist: {', '.join(absent)}"
    for item in items:
        if item.path in fast:
            item.add_marker(pytest.mark.fast)


def is_on_a_second_gpu(item) -> bool:
    """Returns whether a test of SECOND_GPU compares an A100, whose allocations are mostly those of the H100."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return item.path.name in SECOND_GPU and parameters.get("gpu") == "A100-80GB"


@pytest.fixture(scope="module", autouse=True)
def what_is_there_is_set_aside():
    """Python's collector passes over what there is before a file's tests: to look through the objects of every module
    and test takes longer than most tests, and the ledger, the recorder and the oracle's snippets collect often."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def the_environment_is_put_back():
    """`labkit.use_gpu` sets a variable on torch 2.11 and leaves it, for notebooks: the next file's tests go without."""
    before = os.environ.get(UNIFIED)
    yield
    os.environ.pop(UNIFIED, None)
    if before is not None:
        os.environ[UNIFIED] = before


@pytest.fixture
def forked_programs(monkeypatch):
    """Programs in Python that the test starts are forks of a process that has imported PyTorch (tests/forked.py)."""
    monkeypatch.setattr(subprocess, "Popen", forked.started)


class Exactness:
    """The fixture: call it with what makes a `tests.exactness.Finding`.

    `asked`: whether a page is being written, and all there is is to be compared, also what is known to differ.
    """

    def __init__(self, asked: bool, record_property) -> None:
        self.asked = asked
        self.page = {} if asked or not ladder.PAGE.exists() else ladder.by_name(ladder.load())
        self.record_property = record_property
        self.record_property(PROPERTY, None)

    def __call__(self, *args, **kwargs) -> None:
        found = ladder.Finding(*args, **kwargs)
        self.record_property(PROPERTY, ladder.as_property(found))
        more = ladder.overclaim(self.page, found)
        assert more is None, more

    def claimed(self, result: str) -> list[str]:
        """The items of one of the page's results that it claims to be equal."""
        return [item for (name, item), one in self.page.items() if name == result and not one.difference]


@pytest.fixture
def exactness(request, record_property):
    return Exactness(request.config.getoption("--exactness") is not None, record_property)


class Writer:
    """Gathers the findings as tests end, on this process or on workers of xdist, and writes the page at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings: list[ladder.Finding] = []
        self.failed: list[str] = []
        self.cells: dict[Path, list[bool]] = defaultdict(list)

    def pytest_runtest_logreport(self, report):
        file = Path(report.nodeid.partition("::")[0])
        if file.suffix == ".ipynb" and report.when == "call" and file.name != CHAPTER:
            self.cells[file].append(report.passed)
        found = [value for name, value in report.user_properties if name == PROPERTY]
        if found and report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call":
            self.findings += [ladder.Finding(**one) for one in found if one is not None]

    def pytest_sessionfinish(self, session):
        if not self.failed:
            findings = [*self.findings, *self.notebooks(session.config.rootpath)]
            ladder.save(findings, self.path, torch.__version__.split("+")[0])

    def pytest_terminal_summary(self, terminalreporter):
        said = f"not written, because of {', '.join(self.failed)}" if self.failed else "written"
        terminalreporter.line(f"{self.path}: {said}")

    def notebooks(self, root: Path):
        """A finding for each notebook that ran, of the code cells whose output is compared."""
        for file, passed in sorted(self.cells.items()):
            total, ignored = code_cells(root / file)
            wrong = passed.count(False)
            yield ladder.Finding(
                6,
                f"notebooks, {device()}",
                reference(file),
                "code cells",
                file.stem,
                len(passed),
                len(passed) - wrong,
                f"{wrong} cells print something else" if wrong else "",
                {"cells whose output is ignored": ignored, "cells": total},
            )


def reference(file: Path) -> str:
    """Where the outputs that a notebook is compared with come from."""
    rehearsed = f"what the simulated {file.parent.name} prints" if file.parts[:1] == ("rehearsed",) else ""
    return f"{rehearsed or 'the outputs stored in them'}, by pytest --nbval"


def device() -> str:
    """What "cuda" is to the notebooks of this run."""
    if "LABKIT_GPU" in os.environ or not torch.cuda.is_available():
        return f"simulated {os.environ.get('LABKIT_GPU', 'A100-80GB')}"
    return f"{'the oracle as ' if 'MOCK_CC' in os.environ else ''}{torch.cuda.get_device_name()}"
