"""Runs jobs on either side. What the oracle said is kept in a cache beside it, for each pass and GPU."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.oracle import run
from tools.oracle.build import home
from tools.oracle.op_info.jobs import Job

ASKS = ("suites.py", "moving.py", "samples.py", "scaled.py", "facts.py")  # files that decide what the oracle is asked


def _work(jobs: list, gpu: str, version: str | None, where: bool) -> dict[Job, dict]:
    """What the worker finds of [job, backward, only] lists, by job; on the simulated GPU where `version` is None."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "jobs.json"), Path(folder, "found.jsonl")
        given.write_text(json.dumps(jobs))
        options = [*(["--simulated"] if version is None else []), *(["--where"] if where else [])]
        _worker(str(given), found, gpu, version, options)
        rows = [json.loads(line) for line in found.read_text().splitlines()]
    return {Job(*row["job"]): row for row in rows}


def _worker(given: str, found: Path, gpu: str, version: str | None, options: list[str]) -> None:
    environ = {**os.environ, "PYTHONPATH": str(run.ROOT)} if version is None else run.environment(version, gpu)
    environ |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tools.oracle.op_info.worker", given, str(found), "--gpu", gpu, *options]
    done = subprocess.run(command, env=environ, cwd=run.ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the worker ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _folder(version: str, gpu: str) -> Path:
    code = b"".join(Path(__file__).with_name(name).read_bytes() for name in ASKS)
    return home() / "op-info" / version / gpu / hashlib.sha256(code).hexdigest()[:12]


def plan(gpu: str, version: str) -> dict[str, dict[str, dict]]:
    """What the suites hold on a GPU: see `suites.plan`."""
    path = _folder(version, gpu) / "plan.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _worker("plan", path, gpu, version, [])
    return json.loads(path.read_text())


def kept(part: str, gpu: str, version: str) -> dict[str, dict]:
    """What the oracle has said of a pass, by name."""
    path = _folder(version, gpu) / f"{part}.json.gz"
    return json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}


def on_oracle(jobs: list[tuple[Job, bool]], gpu: str, version: str, fresh: bool = False) -> dict[Job, dict]:
    """What the oracle does in these jobs, all of one pass; (job, whether with backward)."""
    part = jobs[0][0].part
    known = kept(part, gpu, version)
    missing = [[job, backward, None] for job, backward in jobs if fresh or job.name not in known]
    if missing:
        print(f"first {len(missing)} of {len(jobs)} on the oracle", file=sys.stderr, flush=True)
        found = _work(missing, gpu, version, where=False)
        known = kept(part, gpu, version) | {job.name: _slim(row) for job, row in found.items()}
        path = _folder(version, gpu) / f"{part}.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as stream:
            stream.write(gzip.compress(json.dumps(known, separators=(",", ":")).encode(), 5, mtime=0))
        os.replace(stream.name, path)
    return {job: known[job.name] for job, _ in jobs if job.name in known}


def _slim(row: dict) -> dict:
    """Without what the scaling tried and PyTorch refused: of a large sample, an error is no answer."""
    if row["job"][4] == "large" and "samples" in row:
        row = row | {"samples": [one for one in row["samples"] if "error" not in one]}
    return row


def on_simulated(jobs: list[tuple[Job, bool]], answers: dict[Job, dict], gpu: str) -> dict[Job, dict]:
    """The same on the simulated GPU, of the samples that the oracle answered."""
    given = [
        [job, backward, [one["number"] for one in answers[job]["samples"]]]
        for job, backward in jobs
        if answers.get(job, {}).get("samples")
    ]
    return simulated(given, gpu)


def simulated(given: list, gpu: str) -> dict[Job, dict]:
    """What the simulated GPU does in [job, whether with backward, numbers of samples] each, by job."""
    return _work(given, gpu, None, where=False) if given else {}


def labelled(
    jobs: list[tuple[Job, bool, list[int]]], gpu: str, version: str
) -> tuple[dict[Job, dict], dict[Job, dict]]:
    """Both sides' samples of these numbers with a label for each event."""
    rows = [[job, backward, numbers] for job, backward, numbers in jobs]
    return _work(rows, gpu, version, where=True), _work(rows, gpu, None, where=True)
