"""Start Python with the oracle's torch, or the worker that records workloads on either side."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from simgpu.stub.engine import DEFAULT_VERSION as DEFAULT_VERSION
from simgpu.stub.engine import Engine, device, home, paths, unpacked

ROOT = Path(__file__).parents[2]
ORDER = "0"  # Python's hash seed: sets of names, and what a program does in their order, are the same on both sides


def environment(version: str, gpu: str) -> dict[str, str]:
    """The environment in which `import torch` is the oracle's torch `version`, with `gpu` as its only device.

    Variables of the form `MOCK_*` that are set already win over those of the GPU. Raises FileNotFoundError
    where that version has not been built.
    """
    engine = built(version)
    stubs = engine.stubs()
    environ = paths(engine, stubs, {**device(engine, stubs, gpu), **os.environ}, str(ROOT))
    return {**environ, "PYTHONHASHSEED": ORDER}


def built(version: str) -> Engine:
    """The engine of torch `version`, without triton, of which the stored traces know nothing. Raises FileNotFoundError
    where that version has not been built."""
    engine = unpacked(version)
    if engine is None:
        raise FileNotFoundError(
            f"no oracle for torch {version} in {home()}: python -m tools.oracle build --torch {version}"
        )
    return replace(engine, triton=None)


def without_gpu(version: str) -> dict[str, str]:
    """The environment in which the simulated GPU runs on the oracle's torch `version`, whose stubs show no GPU: so that
    wheel serves as a build for the CPU. Raises FileNotFoundError where that version has not been built."""
    engine = built(version)
    return {**paths(engine, engine.stubs(), {**os.environ, "MOCK_NDEV": "0"}, str(ROOT)), "PYTHONHASHSEED": ORDER}


def simulated_on(version: str) -> str | None:
    """What `record` is given for the simulated GPU to run on torch `version`: None where that is installed."""
    return None if metadata.version("torch").split("+")[0] == version else version


def here(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the simulated GPU runs: this repository first."""
    paths = [str(ROOT), *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": ORDER}


def run(version: str, gpu: str, arguments: list[str]) -> int:
    """Run `python ARGUMENTS...` on the oracle; its exit status."""
    return subprocess.run([sys.executable, *arguments], env=environment(version, gpu)).returncode


def record(
    names: Iterable[str],
    gpu: str,
    folder: Path,
    *,
    version: str | None = None,
    simulated_on: str | None = None,
    code: str | None = None,
    quick: bool = False,
    values: bool = False,
) -> Iterator[tuple[str, str | None]]:
    """Record the workloads `names`, and the snippet `code` as "code", into `folder`.

    On the oracle of torch `version`, or, if that is None, on the simulated GPU, which runs on the torch that is
    installed or on the oracle's of the version `simulated_on` (`without_gpu`); `quick` leaves out the stacks of C++
    and the nodes of autograd, and `values` gives the simulated GPU the values of all tensors.
    As each is done, yields its name, and its log if it failed, else None. Raises RuntimeError with the worker's own
    errors where it could not start.
    """
    names = list(names)
    if not names and code is None:
        return
    if version is not None:
        environ = environment(version, gpu)
    else:
        environ = here(os.environ) if simulated_on is None else without_gpu(simulated_on)
    command = [sys.executable, "-m", "tools.oracle.worker", str(folder), *names, "--gpu", gpu]
    command += ["--simulated"] if version is None else []
    command += ["--quick"] if quick else []
    command += ["--values"] if values else []
    command += ["--code", code] if code is not None else []
    with subprocess.Popen(
        command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        for line in worker.stdout:
            name, failed = line.split()
            yield name, (folder / f"{name}.log").read_text() if failed == "failed" else None
        errors = worker.stderr.read()
    if worker.returncode:
        raise RuntimeError(f"the worker ended with {worker.returncode}:\n{errors}")
