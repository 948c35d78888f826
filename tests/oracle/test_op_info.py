"""PyTorch's own samples of operators, modules and optimizers, replayed against what the oracle said of them."""

import random
from functools import cache
from importlib import metadata

import pytest

from simgpu import unmodeled
from tests import versions
from tests.exactness import ORACLE
from tools.oracle.op_info import apart, digests, jobs, judge, page, proved, runs

WHOLE = "op-float32-plain-small"  # replayed with every operator; of the other passes some
EVERY = 24  # of their operators
SUITES = {"op": "op_db", "foreach": "foreach operators", "module": "module_db", "optim": "optim_db"}
PASSES = [(gpu, part) for gpu in page.gpus() for part in digests.load(gpu)]

# Operators of Python code, which the digests have under Python 3.11 or later.
IN_PYTHON = {"nn.functional.linear_cross_entropy.chunked", "signal.windows.kaiser"}
OTHER_LIFETIMES = set() if versions.ARGUMENTS_GO_EARLY else IN_PYTHON

pytestmark = pytest.mark.usefixtures("forked_programs")
of_this_torch = pytest.mark.skipif(
    metadata.version("torch").split("+")[0] != digests.torch_of("H100"), reason="the digests are of another torch"
)


def _equal(gpu: str, part: str) -> list[str]:
    return [name for name, one in digests.load(gpu)[part].items() if one.verdict == "equal"]


@pytest.fixture(scope="module")
def replayed(request):
    """What is found of the passes that were asked for, by GPU: one process runs all of a GPU, for it starts slowly."""
    selected = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    asked = {one.params["part"] for one in selected if one is not None and "part" in one.params}

    @cache
    def of(gpu):
        wanted = {}
        for part in asked.intersection(part for one, part in PASSES if one == gpu):
            equal = _equal(gpu, part)
            names = equal if (gpu, part) == ("H100", WHOLE) else equal[sum(map(ord, part)) % EVERY :: EVERY]
            wanted[part] = [name for name in names if name not in OTHER_LIFETIMES]
        return digests.replay(gpu, wanted, most=2)

    return of


@of_this_torch
@pytest.mark.parametrize(("gpu", "part"), PASSES, ids=lambda value: value)
def test_what_was_equal_is_equal(gpu, part, replayed, exactness):
    comparable = [name for name, one in digests.load(gpu)[part].items() if one.verdict != "apart"]
    equal = _equal(gpu, part)
    found = replayed(gpu)[part]
    assert {name: what for name, what in found.items() if what != "equal"} == {}
    if comparable:
        others = [name for name in comparable if name not in equal]
        said = f"{len(others)} differ, fail or are refused, by name in docs/operators.md" if others else ""
        suite = SUITES[part.split("-")[0]]
        exactness(2, f"{suite}, {gpu}", ORACLE, f"{suite} entries", part, len(comparable), len(equal), said)


def _told(job: jobs.Job, facts: dict) -> bool:
    """Whether a program that runs this sample hears of what its figures leave out, or that it is not modelled."""
    if facts.get("told") or (facts.get("error") or "").startswith(judge.REFUSALS):
        return True
    known = unmodeled.differing().keys() | unmodeled.proved()
    return any(one in unmodeled.differing() or one not in known for one in facts["operators"])


@of_this_torch
@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_program_equals_or_is_told(seed):
    """The README's sentence: what is not modelled is said by name. Operators that differ are drawn as often as any."""
    stored = {name: one for name, one in digests.load("H100")[WHOLE].items() if name not in OTHER_LIFETIMES}
    drawn = random.Random(seed).sample([name for name, one in stored.items() if one.digests], 40)
    drawn += [name for name, one in stored.items() if one.verdict not in ("equal", "apart")]
    asked = [
        [jobs.of_part(WHOLE, name), stored[name].backward, list(stored[name].digests)[seed - 1 :: 4]] for name in drawn
    ]
    found = runs.simulated([one for one in asked if one[2]], "H100")
    silent = {}
    for job, row in found.items():
        for facts in row["samples"]:
            same = judge.digest(facts) == stored[job.name].digests[facts["number"]]
            if not same and not _told(job, facts):
                silent[job.name] = facts["number"]
    assert silent == {}


def test_the_page_shows_what_is_stored():
    assert page.PAGE.read_text(encoding="utf-8") == page.text()


def test_blame_goes_to_the_operator_whose_formula_it_is():
    ran = ["aten::mul.Tensor", "aten::var_mean.correction", "aten::div.Scalar"]
    assert proved.blame(["div_Scalar/div_Tensor|f|VarMeanBackward0|"], ran) == {"aten::var_mean.correction"}
    assert proved.blame(["mul_Tensor|||x.py:1 f"], ran) == {"aten::mul.Tensor"}
    assert proved.blame(["add_Tensor|||x.py:1 f"], ran) == set()


def test_a_sample_is_set_apart_by_the_library_that_it_runs_in():
    assert apart.reason("op", "linalg.norm", None, ["aten::_linalg_svd"]) is not None
    assert apart.reason("op", "linalg.norm", None, ["aten::linalg_vector_norm"]) is None
    assert apart.reason("op", "nonzero", None) == apart.VALUES


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict"),
    [
        ({"events": "a4 f4"}, {"events": "a4 f4"}, "equal"),
        ({"events": "a4 f4"}, {"events": "a4 a4"}, "differs"),
        ({"events": ""}, {"events": "", "error": "NotModelledError: no"}, "refused"),
        ({"events": ""}, {"events": "", "error": "RuntimeError: meta"}, "obscure"),
        ({"events": "", "error": "RuntimeError: bad"}, {"events": "a4", "error": "RuntimeError: bad"}, "equal"),
        ({"events": "", "error": "RuntimeError: bad"}, {"events": ""}, "differs"),
    ],
)
def test_verdicts(theirs, ours, verdict):
    head = {"number": 0, "sample": "x", "stage": "end"}
    assert judge.sample(jobs.Job("op", "add", "float32"), head | theirs, head | ours).verdict == verdict
