"""The action .github/actions/gpu-memory on a small project: what it prints, comments and returns."""

import json
import os
import re
import runpy
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ACTION = Path(__file__).parents[2] / ".github" / "actions" / "gpu-memory"
TRAIN = """
import torch

model = torch.nn.Linear(1000, 1000).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(64, 1000, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
GH = """#!{python}
import json, pathlib, sys
log = pathlib.Path({log!r})
calls = json.loads(log.read_text()) if log.exists() else []
method, where = sys.argv[sys.argv.index("--method") + 1], sys.argv[sys.argv.index("--method") + 2]
body = json.loads(sys.stdin.read())["body"] if "--input" in sys.argv else ""
if method == "GET":
    print(json.dumps([{{"id": 7, "body": one["body"]}} for one in calls if one["body"]]))
log.write_text(json.dumps([*calls, {{"method": method, "where": where, "body": body}}]))
"""


def git(folder, *arguments):
    subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path):
    """A repository with the script on its branch main, and a clone of it in which a branch is checked out."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init", "--quiet", "--initial-branch=main")
    for text in ("# first", TRAIN):  # two commits, so that there is history to lose
        (origin / "train.py").write_text(text)
        git(origin, "add", ".")
        git(origin, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "--message", "a change")
    git(tmp_path, "clone", "--quiet", str(origin), str(clone))
    return clone


class Ran:
    """What one run of the action did."""

    def __init__(self, status, printed, folder):
        self.status, self.printed = status, printed
        self.log, self.folder = folder / "gh.json", folder
        self.summary, self.outputs = ((folder / name).read_text() if (folder / name).exists() else "" for name in "so")

    @property
    def calls(self):
        return json.loads(self.log.read_text()) if self.log.exists() else []


@pytest.fixture
def act(project, tmp_path, monkeypatch, capfd, forked_programs):
    """Returns a function that runs the action as GitHub does in a pull request, with its default inputs but for
    `given`."""

    def run(**given):
        for name, value in environment(project, tmp_path, given).items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ACTION / "gpu_memory.py"), run_name="__main__")
        printed = capfd.readouterr()
        return Ran(ended.value.code, printed.out + printed.err, tmp_path)

    return run


def environment(project, tmp_path, given):
    """The variables that GitHub sets."""
    binaries = tmp_path / "bin"
    binaries.mkdir(exist_ok=True)
    gh = binaries / "gh"
    gh.write_text(GH.format(python=sys.executable, log=str(tmp_path / "gh.json")))
    gh.chmod(gh.stat().st_mode | stat.S_IXUSR)
    inputs = yaml.safe_load((ACTION / "action.yml").read_text())["inputs"]
    values = {name: about.get("default", "") for name, about in inputs.items()} | {"command": "train.py", "gpu": "T4"}
    values |= {name.replace("_", "-"): value for name, value in given.items()}
    variables = {f"INPUT_{name.upper().replace('-', '_')}": value for name, value in values.items()}
    variables |= {"GITHUB_WORKSPACE": str(project), "GITHUB_REPOSITORY": "a/b", "PULL_REQUEST": "3"}
    variables |= {"GITHUB_BASE_REF": "main", "GITHUB_STEP_SUMMARY": str(tmp_path / "s")}
    variables |= {"GITHUB_OUTPUT": str(tmp_path / "o"), "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    return variables | {"PYTHONPATH": str(ACTION.parents[2]), "SIMGPU_ENGINE": "meta"}


def test_it_compares_a_branch_with_its_base_and_renews_its_comment(project, act):
    (project / "train.py").write_text(TRAIN.replace("64, 1000", "6400, 1000"))
    ran = act()
    assert ran.status == 0, ran.printed
    get, post = ran.calls
    assert (get["method"], post["method"], post["where"]) == ("GET", "POST", "repos/a/b/issues/3/comments")
    assert post["body"] + "\n" == ran.summary
    assert "It fits on a T4 and needs" in post["body"] and "train.py:7" in post["body"]
    head, base = (json.loads(path.read_text()) for path in reports(ran))
    row = next(line for line in post["body"].splitlines() if line.startswith("| allocated"))
    cells = [float(cell.strip().lstrip("+")) for cell in row.split("|")[2:5]]
    assert cells == pytest.approx([n / 2**20 for n in (base["peak"], head["peak"], head["peak"] - base["peak"])], abs=1)
    assert f"peak={head['peak']}\n" in ran.outputs and "outcome=fits\n" in ran.outputs
    again = act()
    assert [call["method"] for call in again.calls[2:]] == ["GET", "PATCH"]
    assert again.calls[-1]["where"] == "repos/a/b/issues/comments/7"
    worktrees = subprocess.run(["git", "-C", project, "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(worktrees.stdout.splitlines()) == 1  # the base's checkout is gone
    assert not (project / ".git" / "shallow").exists()  # the clone has its whole history


def reports(ran):
    folder = Path(re.search(r"^report=(.*)$", ran.outputs, re.MULTILINE)[1])
    return folder / "head" / "report.json", folder / "base" / "report.json"


def test_it_fails_above_the_limit_with_a_comment(act):
    ran = act(limit="150 MiB", compare="false")
    assert ran.status == 1
    assert "above the limit of 150 MiB" in ran.calls[-1]["body"]
    assert "::error::It needs" in ran.printed


def test_it_fails_where_the_script_does_not_fit(project, act):
    (project / "train.py").write_text(TRAIN.replace("64, 1000", "64_000_000, 1000"))
    ran = act(compare="false", comment="false")
    assert ran.status == 1 and ran.calls == []
    assert "It does not fit on a simulated T4" in ran.summary


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpu": ""}, "the input 'gpu' is missing"),
        ({"gpu": "T5"}, "T5"),
        ({"command": "absent.py"}, "absent.py"),
        ({"limit": "much"}, "limit: 'much' is not a size"),
        ({"limit": "12"}, "limit: '12' is 12 B, as it has no unit"),
        ({"compare": "yes"}, 'compare is \'yes\': wanted "true" or "false"'),
        ({"folder": "nowhere"}, "folder is 'nowhere', which the repository does not have"),
    ],
)
def test_a_wrong_input_is_an_error_of_one_line(act, given, said):
    ran = act(**given)
    assert ran.status == 2
    error = next(line for line in ran.printed.splitlines() if line.startswith("::error::"))
    assert said in error and ran.calls == []


def test_every_input_reaches_the_program():
    """Each input of action.yml is read by gpu_memory.py or by pip's step, under its name."""
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    program = (ACTION / "gpu_memory.py").read_text()
    install, measure = action["runs"]["steps"]
    for name in action["inputs"]:
        if name in ("simgpu", "token"):
            continue
        variable = f"INPUT_{name.upper().replace('-', '_')}"
        assert measure["env"][variable] == f"${{{{ inputs.{name} }}}}"
        assert f'"{name}"' in program
    assert install["env"]["SIMGPU"] == "${{ inputs.simgpu }}"
