"""Finds calls, or answers them, in this process' torch, in children that may die: `capture FILE`, `capture-few FILE`,
`answer FROM FILE`.

`tools.oracle.dtypes` starts it, in the oracle and, with `--simulated GPU`, beside it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

from tools.oracle.dtypes.calls import DTYPES, Capture, answer

AT_ONCE = 60, 2000  # jobs, calls of a child


def _child(work: Callable[[], None]) -> bool:
    """Whether a child that does it comes to its end."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.cuda._is_in_bad_fork = lambda: False
            torch._C._set_cudnn_enabled(False)
            warnings.simplefilter("ignore")
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _jobs(dtypes=DTYPES) -> list:
    """(job, whether with backward) of PyTorch's own samples, in every one of `dtypes` that they are for on CUDA."""
    from tools.oracle.op_info import jobs, suites

    found = []
    for suite in ("op", "foreach"):
        for name, entry in suites.entries(suite).items():
            forward, backward = entry.supported_dtypes("cuda"), entry.supported_backward_dtypes("cuda")
            for dtype in (one for one in dtypes if getattr(torch, one) in forward):
                kind = getattr(torch, dtype)
                can = entry.supports_autograd and kind in backward and (kind.is_floating_point or kind.is_complex)
                found.append((jobs.Job(suite, name, dtype), can and suite == "op"))
                if suite == "op" and entry.inplace_variant is not None:
                    found.append((jobs.Job(suite, name, dtype, "inplace"), can))
    modules = suites.entries("module")
    return found + [(jobs.Job("module", name, one), True) for name in modules for one in dtypes[:4]]


def _run_job(job, backward: bool) -> Capture:
    from tools.oracle.op_info import samples
    from tools.oracle.op_info.moving import tensors_in

    seen = Capture()
    try:
        drawn = samples.of(job, backward)
    except Exception:
        return seen
    for sample in drawn:
        try:
            call, leaves = sample.make()
            with seen:
                wanted = [one for one in tensors_in(call()) if one.requires_grad and one.grad_fn is not None]
                if leaves and wanted:
                    torch.autograd.backward(wanted, [torch.ones_like(one) for one in wanted])
        except Exception:  # a sample that is an error on CUDA is no call to learn from
            continue
    return seen


def _run_snippets(snippets: list[str]) -> Capture:
    from torch import nn
    from torch.nn import functional as F

    seen = Capture()
    for code in snippets:
        names = {"torch": torch, "nn": nn, "F": F, "tell": lambda *told: None}
        try:
            with seen:
                exec(compile(code, "snippet", "exec"), names)
        except Exception:
            continue
        finally:
            torch._C._set_cudnn_enabled(False)
    return seen


def capture(found: Path, dtypes=DTYPES, snippets_too: bool = True) -> None:
    """Writes the calls of ATen's operators in PyTorch's samples and in the recorded snippets, a line each."""
    from tools.oracle import cases

    families = sorted(path.name.split(".")[0] for path in cases.FOLDER.glob("*.json.gz")) if snippets_too else []
    snippets = [one.code for family in families for one in cases.load(family) if one.gpu == "H100" and not one.error]
    plan: list[tuple[Callable, list]] = [(_run_job, [one]) for one in _jobs(dtypes)]
    plan += [(_run_snippets, [(snippets[at : at + 100],)]) for at in range(0, len(snippets), 100)]

    def write(tasks) -> None:
        with found.open("a") as stream:
            for run, given in tasks:
                for arguments in given:
                    stream.writelines(json.dumps(call) + "\n" for call in run(*arguments).calls.values())
                stream.flush()

    found.write_text("")
    for at in range(0, len(plan), AT_ONCE[0]):
        part = plan[at : at + AT_ONCE[0]]
        if not _child(lambda part=part: write(part)):
            for one in part:
                _child(lambda one=one: write([one]))


def answers(given: Path, found: Path, gpu: str | None) -> None:
    """Writes the answer to each call of a file, a line each; "crash" where it ends its process."""
    calls = json.loads(given.read_text())

    def write(part) -> None:
        from tools.oracle.simulated import simulated_gpu

        with nullcontext() if gpu is None else simulated_gpu(gpu, nodes=False), found.open("a") as stream:
            for call in part:
                signal.alarm(60)
                stream.write(json.dumps(answer(call)) + "\n")
                stream.flush()

    found.write_text("")
    done = 0
    while done < len(calls):
        whole = _child(lambda at=done: write(calls[at : at + AT_ONCE[1]]))
        done = len(found.read_text().splitlines())
        if not whole:
            with found.open("a") as stream:
                stream.write('"crash"\n')
            done += 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "capture":
        capture(Path(sys.argv[2]))
    elif sys.argv[1] == "capture-few":
        capture(Path(sys.argv[2]), ("float32", "int64", "bool"), snippets_too=False)
    else:
        answers(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[5] if "--simulated" in sys.argv else None)
