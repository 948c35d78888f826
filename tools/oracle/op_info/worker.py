"""Runs jobs on the oracle or the simulated GPU: a process that forks a child for some jobs at a time.

What a child has done is written line by line; a child that dies takes only the job with it that it was at, and that one
is tried once more, alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path

JOBS_OF_A_CHILD = 40


def main() -> None:
    """Read [[job, backward, only], ...] from a file, write {"job": ..., "samples": [...]} to another, line by line."""
    parser = argparse.ArgumentParser(prog="python -m tools.oracle.op_info.worker")
    parser.add_argument("given", type=Path, help='"plan": the operators of the suites instead')
    parser.add_argument("found", type=Path)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--where", action="store_true", help="label each event")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one job")
    options = parser.parse_args()

    import torch

    from tools.oracle.op_info import suites

    torch.set_num_threads(1)
    if str(options.given) == "plan":
        options.found.write_text(json.dumps(suites.plan()))
        return
    for suite in ("op", "foreach", "module", "optim"):
        suites.entries(suite)
    _warm_up(options)
    gc.collect()
    gc.freeze()
    jobs = json.loads(options.given.read_text())
    done, tried_again = 0, False
    while done < len(jobs):
        count = 1 if tried_again else JOBS_OF_A_CHILD
        status = _in_child(jobs[done : done + count], options)
        finished = len(options.found.read_text().splitlines()) if options.found.exists() else 0
        whole = finished >= min(done + count, len(jobs))
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise RuntimeError(f"the worker itself failed at {jobs[finished][0]}")  # what it says is above
        if not whole and (tried_again or finished == done) and count == 1:
            with options.found.open("a") as stream:
                stream.write(json.dumps({"job": jobs[finished][0], "crash": _said(status)}) + "\n")
            finished += 1
            whole = True
        tried_again = not whole
        done = finished


def _said(status: int) -> str:
    return f"ended by signal {signal.Signals(os.WTERMSIG(status)).name}"


def _warm_up(options) -> None:
    from tools.oracle.worker import _warm_up as once

    once(options.simulated, stacks=options.where)


def _in_child(jobs: list, options) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _run(jobs, options)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(child, 0)[1]


def _run(jobs: list, options) -> None:
    import torch

    torch.cuda._is_in_bad_fork = lambda: False  # the stub driver does not mind
    with options.found.open("a") as stream:
        for job, backward, only in jobs:
            signal.alarm(options.timeout)
            samples = _results(job, backward, only, options)
            signal.alarm(0)
            stream.write(json.dumps({"job": job, "samples": samples}, separators=(",", ":")) + "\n")
            stream.flush()


def _results(job: list, backward: bool, only: list | None, options) -> list[dict]:
    from tools.oracle.op_info import samples
    from tools.oracle.op_info.jobs import Job

    try:
        drawn = samples.of(Job(*job), backward)
    except Exception as error:
        return [{"number": 0, "sample": "", "stage": "draw", "error": f"{type(error).__name__}: {error}"}]
    numbers = range(len(drawn)) if only is None else [number for number in only if number < len(drawn)]
    with _device(options):
        _touch()
        return [_one(drawn[number], number, options) for number in numbers]


def _device(options):
    if not options.simulated:
        return nullcontext()
    from tools.oracle.simulated import simulated_gpu

    return simulated_gpu(options.gpu)


def _touch() -> None:
    """What a process does once: the context, cuBLAS and the backward thread."""
    import torch

    x = torch.zeros(2, 2).to("cuda").requires_grad_()
    (x @ x).sum().backward()


def _one(sample, number: int, options) -> dict:
    from tools.oracle import labels
    from tools.oracle.op_info import facts

    where = labels.where if options.where else None
    if not options.simulated:
        return {"number": number} | facts.run(sample, number, where)
    from tools.oracle.op_info.seen import operators_seen, told_anew

    with operators_seen() as seen, told_anew() as told:
        found = facts.run(sample, number, where)
    return {"number": number} | found | {"operators": sorted(seen), "told": dict(told)}


if __name__ == "__main__":
    main()
