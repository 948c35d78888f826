"""The files that a host of repositories reads: workflows, issue forms, what builds other environments."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def loaded(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_bounded(path):
    """It may only read, a newer run ends or waits for an older one, and no job runs for ever."""
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"} or path.stem == "pages"
    assert workflow["concurrency"]["group"]
    assert all(job["timeout-minutes"] <= 350 for job in workflow["jobs"].values())


def test_actions_are_pinned():
    """Each by the commit of a version that a comment names, and by the same one everywhere."""
    used = {}
    for path in WORKFLOWS:
        for line in path.read_text(encoding="utf-8").splitlines():
            if "uses:" in line:
                found = re.fullmatch(r"\s*(?:- )?uses: ([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line)
                assert found, f"{path.name}: {line.strip()}"
                used.setdefault(found[1], set()).add(found.groups()[1:])
    assert "actions/checkout" in used
    assert {name: versions for name, versions in used.items() if len(versions) > 1} == {}
    updated = {one["package-ecosystem"]: one["directory"] for one in loaded(GITHUB / "dependabot.yml")["updates"]}
    assert updated == {"github-actions": "/", "pip": "/.github"}


def test_every_promised_python_is_tested_on_every_system():
    matrix = loaded(GITHUB / "workflows" / "cpu.yml")["jobs"]["test"]["strategy"]["matrix"]
    promised = re.findall(r":: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert promised and set(promised) <= set(matrix["python"])
    assert f">={matrix['python'][0]}" == PROJECT["requires-python"]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}


def test_the_lowest_torch_is_the_promised_one():
    """torch.yml reads it out of pyproject.toml by a pattern of sed's, which has to find one line."""
    (job,) = (job for name, job in loaded(GITHUB / "workflows" / "torch.yml")["jobs"].items() if name == "lowest")
    (pattern,) = re.findall(r"s/(.+?)/\\1/p", "".join(step.get("run", "") for step in job["steps"]))
    pattern = pattern.replace(r"\(", "(").replace(r"\)", ")")
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    found = [match[1] for line in lines if (match := re.fullmatch(pattern.strip("^$"), line))]
    (wanted,) = (one for one in PROJECT["dependencies"] if one.startswith("torch"))
    assert [f"torch>={version}" for version in found] == [wanted]


def test_the_gpu_job_runs_where_there_is_a_runner():
    (job,) = loaded(GITHUB / "workflows" / "gpu.yml")["jobs"].values()
    assert job["if"] == "vars.GPU_RUNNER == 'true'"
    assert any("simgpu.record" in step.get("run", "") for step in job["steps"])
    assert set(job["runs-on"]) - {"self-hosted"} <= set(
        loaded(GITHUB / "actionlint.yaml")["self-hosted-runner"]["labels"]
    )


def test_the_stub_engines_tests_run_each_week():
    """The everyday run skips them, because it does not fetch a CUDA wheel."""
    workflow = loaded(GITHUB / "workflows" / "oracle.yml")
    steps = [step.get("run", "") for step in workflow["jobs"]["engine"]["steps"]]
    assert any("tools.oracle build" in step for step in steps)
    assert any("pytest tests/programs/stub" in step for step in steps)
    assert "schedule" in workflow[True]  # YAML reads the key `on` as a truth value


def test_commands_of_workflows_are_of_this_project():
    """What they run with -m of the project's own is there."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    modules = set(re.findall(r"-m ((?:tools|simgpu|benchmarks)[\w.]*)", text))
    assert {"tools.wheel", "tools.oracle", "simgpu.record"} <= modules
    for name in modules:
        place = ROOT / name.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), name


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint():
    done = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# --- issue forms ---------------------------------------------------------------------------------------

FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_an_issue_form_is_one(path):
    form = loaded(path)
    assert {"name", "description", "body"} <= form.keys()
    named = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert named and len(named) == len(set(named))
    assert all(part["attributes"].get("label") for part in form["body"] if part["type"] != "markdown")


def test_numbers_that_differ_come_with_chapter_00():
    form = loaded(GITHUB / "ISSUE_TEMPLATE" / "my_numbers_differ.yml")
    asked = {part.get("id"): part for part in form["body"]}
    assert asked["machine"]["validations"]["required"] and "[OK]" in asked["machine"]["attributes"]["description"]


# --- other environments ---------------------------------------------------------------------------


def test_binder_and_the_devcontainer_set_up_this_course():
    build = (ROOT / ".binder" / "postBuild").read_text(encoding="utf-8")
    assert "constraints.txt" in build and "[course]" in build and "whl/cpu" in build
    if sys.platform != "win32":
        assert (ROOT / ".binder" / "postBuild").stat().st_mode & 0o111
    python = (ROOT / ".binder" / "runtime.txt").read_text(encoding="utf-8").strip().removeprefix("python-")
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert container["image"].endswith(f":{python}")
    assert container["postCreateCommand"] == "python course.py setup"


def test_the_cell_and_the_buttons_are_as_written():
    from tools import launch_badges

    assert {path: path.read_text(encoding="utf-8") for path in launch_badges.pages()} == launch_badges.pages(), (
        "run: python -m tools.launch_badges"
    )


def test_the_cell_leaves_torch_alone():
    from tools import launch_badges

    cell = launch_badges.cell("https://github.com/owner/name")
    assert "git clone -q --depth 1 https://github.com/owner/name " in cell
    assert "--no-deps" in cell and "torch " not in cell and "LABKIT_GPU=A100-80GB" in cell
    extras = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["course"]]
    needed = {re.match(r"[\w-]+", line)[0] for line in extras}
    assert set(launch_badges.missing()) == needed - launch_badges.THERE - launch_badges.NOT_NEEDED
    assert {"sortedcontainers", "torchinfo"} <= set(launch_badges.missing())


def test_buttons_need_an_address():
    from tools import launch_badges

    assert launch_badges.buttons(None) == launch_badges.buttons("https://example.org/owner/name") == ""
    lines = launch_badges.buttons("https://github.com/owner/name").splitlines()
    assert len(lines) == 4
    colab = "https://colab.research.google.com/github/owner/name/blob/main/notebooks/00_out_of_memory.ipynb"
    assert any(f"]({colab})" in line for line in lines)
    with pytest.raises(ValueError, match="the marks of buttons are not there"):
        launch_badges.between("no marks", "buttons", "")
