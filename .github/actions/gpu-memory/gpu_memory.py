"""Measures a script's GPU memory on a simulated GPU, compares it with a pull request's base, and comments the result.

The action in action.yml runs this file; its inputs are environment variables named INPUT_…. The exit status is 0 if the
script fits and keeps the limit, 1 if it does not, and 2 for a wrong input.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from simgpu.report.sizes import capacity, mib

MARK = "<!-- gpu-memory: {command} on {gpu} -->"
"""The comment's first line, by which a later run finds the comment that it has to renew."""
LONGEST = 60_000
"""Characters of a comment; GitHub accepts 65,536."""
FIGURES = (("allocated, at the peak", "peak"), ("reserved", "reserved"), ("as nvidia-smi shows it", "nvidia_smi"))


class InputError(Exception):
    """A wrong input of the action."""


def given(name: str) -> str:
    """Returns an input of the action, without blanks around it; "" if there is none."""
    return os.environ.get(f"INPUT_{name.upper().replace('-', '_')}", "").strip()


def wanted(name: str) -> bool:
    """Returns an input that is "true" or "false". Raises InputError for anything else."""
    value = given(name).lower() or "false"
    if value not in ("true", "false"):
        raise InputError(f'{name} is {value!r}: wanted "true" or "false"')
    return value == "true"


def limit() -> int | None:
    """Returns the limit in bytes, or None without one. Raises InputError for a text that is not a size."""
    try:
        return capacity(given("limit")) if given("limit") else None
    except ValueError as error:
        raise InputError(f"limit: {error}") from None


def measure(root: Path, out: Path) -> dict:
    """Runs the command in a checkout of the repository; returns the report, and prints the page.

    Raises InputError if the run was not made, for instance because the script or the GPU does not exist.
    """
    folder = root / (given("folder") or ".")
    if not folder.is_dir():
        raise InputError(f"folder is {given('folder')!r}, which the repository does not have")
    steps = ["--steps", given("steps")] if given("steps") else []
    options = ["--gpu", given("gpu"), *steps, *shlex.split(given("options")), "--out", str(out)]
    command = [sys.executable, "-m", "simgpu", "run", *options, *shlex.split(given("command"))]
    print(f"$ {shlex.join(command[1:])}", flush=True)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="\n", flush=True)
    report = out / "report.json"
    if not report.is_file():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise InputError(f"simgpu run made no report: {lines[-1] if lines else f'exit status {done.returncode}'}")
    return json.loads(report.read_text(encoding="utf-8"))


def base_of(root: Path, out: Path) -> tuple[dict | None, str]:
    """Returns the report of a pull request's base, and why there is none otherwise."""
    name = os.environ.get("GITHUB_BASE_REF", "")
    if not name or not wanted("compare"):
        return None, ""
    shallow = ["git", "-C", str(root), "rev-parse", "--is-shallow-repository"]
    is_shallow = subprocess.run(shallow, capture_output=True, text=True).stdout.strip() == "true"
    depth = ["--depth=1"] if is_shallow else []  # which would cut the history of a whole clone
    fetch = ["git", "-C", str(root), "fetch", "--quiet", *depth, "origin", name]
    if (done := subprocess.run(fetch, capture_output=True, text=True)).returncode:
        return None, f"The base `{name}` could not be fetched: {done.stderr.strip()}"
    with tempfile.TemporaryDirectory() as place:
        checkout = Path(place) / "base"
        add = ["git", "-C", str(root), "worktree", "add", "--quiet", "--detach", str(checkout), "FETCH_HEAD"]
        subprocess.run(add, check=True)
        try:
            return measure(checkout, out), ""
        except InputError as error:
            return None, f"The base `{name}` was not measured: {error}"
        finally:
            subprocess.run(["git", "-C", str(root), "worktree", "remove", "--force", str(checkout)], check=True)


def verdict(report: dict) -> tuple[bool, str]:
    """Returns whether the job passes, and the reason in a sentence."""
    most, outcome = limit(), report["outcome"]
    shown = f"{mib(report['nvidia_smi'])} MiB as nvidia-smi shows it"
    if most is not None and report["nvidia_smi"] > most:
        return False, f"It needs {shown}, which is above the limit of {given('limit')}."
    if outcome == "undecided" and wanted("allow-undecided"):
        return True, f"It is undecided whether it fits on a {report['gpu']}, which this job allows. It needs {shown}."
    if outcome != "fits":
        how = {"does not fit": "It does not fit", "failed": "The script failed", "undecided": "It is undecided"}[
            outcome
        ]
        return False, f"{how} on a simulated {report['gpu']}. {report.get('ended', '')}".rstrip()
    kept = "" if most is None else f", below the limit of {given('limit')}"
    return True, f"It fits on a {report['gpu']} and needs {shown}{kept}."


def table(report: dict, base: dict | None) -> str:
    """Returns the figures as a Markdown table, with those of the base where it was measured."""
    rows = ["| MiB | base | this branch | change |", "|---|---:|---:|---:|"] if base else ["| MiB | |", "|---|---:|"]
    for words, name in FIGURES:
        cells = [words, mib(report[name])]
        if base:
            change = report[name] - base[name]
            cells[1:1] = [mib(base[name])]
            cells.append("0" if change == 0 else f"{'+' if change > 0 else '−'}{mib(abs(change))}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def text(report: dict, base: dict | None, why: str, said: str, passed: bool, folders: tuple[Path, Path]) -> str:
    """Returns the comment as Markdown."""
    mark = MARK.format(command=given("command").replace("--", "‐‐"), gpu=report["gpu"])
    title = f"### GPU memory of `{given('command')}` on a simulated {report['gpu']}: {'ok' if passed else 'not ok'}"
    excluded = f"The figures do not include everything: {report['unmodeled']}" if report["unmodeled"] else ""
    parts = [mark, title, said, table(report, base), why, excluded]
    if base is not None:
        diff = [sys.executable, "-m", "simgpu", "diff", *map(str, folders)]
        shown = subprocess.run(diff, capture_output=True, text=True).stdout.strip()
        parts.append(
            f"<details><summary>What changed at the peak, by line</summary>\n\n```text\n{shown}\n```\n</details>"
        )
    page = folders[1] / "page.txt"
    if page.is_file():
        shown = page.read_text(encoding="utf-8").strip()
        parts.append(f"<details><summary>The whole report</summary>\n\n```text\n{shown}\n```\n</details>")
    whole = "\n\n".join(part for part in parts if part)
    return whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}\n```\n</details>\n\n(shortened)"


def comment(body: str) -> None:
    """Writes the comment on the pull request, or renews the one that an earlier run wrote.

    Where the token may not write, as in pull requests from forks, it prints a warning instead.
    """
    number, repository = os.environ.get("PULL_REQUEST", ""), os.environ.get("GITHUB_REPOSITORY", "")
    if not (number and repository and wanted("comment")):
        return
    first = body.partition("\n")[0]
    listed = api(f"repos/{repository}/issues/{number}/comments?per_page=100")
    known = [one["id"] for one in json.loads(listed or "[]") if one.get("body", "").startswith(first)]
    where = f"issues/comments/{known[0]}" if known else f"issues/{number}/comments"
    api(f"repos/{repository}/{where}", "PATCH" if known else "POST", {"body": body})


def api(where: str, method: str = "GET", content: dict | None = None) -> str:
    """Calls GitHub's API by its command line, gh; returns the answer, "" if it failed."""
    command = ["gh", "api", "--method", method, where, *(["--input", "-"] if content else [])]
    done = subprocess.run(command, input=json.dumps(content) if content else None, capture_output=True, text=True)
    if done.returncode:
        print(f"::warning::The comment was not written: {done.stderr.strip()}")
    return done.stdout if done.returncode == 0 else ""


def append(variable: str, content: str) -> None:
    """Appends to a file that GitHub names in the environment, if there is one."""
    if path := os.environ.get(variable):
        with open(path, "a", encoding="utf-8") as file:
            file.write(content + "\n")


def main() -> int:
    """Runs the action; returns the exit status."""
    root = Path(os.environ.get("GITHUB_WORKSPACE", ".")).resolve()
    try:
        for name in ("command", "gpu"):
            if not given(name):
                raise InputError(f"the input {name!r} is missing")
        limit(), wanted("allow-undecided"), wanted("compare"), wanted("comment")
        folder = Path(tempfile.mkdtemp(prefix="gpu-memory-"))
        folders = folder / "base", folder / "head"
        report = measure(root, folders[1])
        base, why = base_of(root, folders[0])
    except InputError as error:
        print(f"::error::{error}")
        return 2
    passed, said = verdict(report)
    body = text(report, base, why, said, passed, folders)
    append("GITHUB_STEP_SUMMARY", body)
    figures = (f"outcome={report['outcome']}", f"peak={report['peak']}", f"nvidia-smi={report['nvidia_smi']}")
    append("GITHUB_OUTPUT", "\n".join([*figures, f"report={folder}"]))
    comment(body)
    if not passed:
        print(f"::error::{said}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
