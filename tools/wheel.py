"""Installs the wheel alone, as a user without a clone, and tries it: `python -m tools.wheel`, with `--notebooks`
the chapters.

In a folder of its own, which is removed afterwards, the wheel is built from this checkout and installed into an empty
environment with torch. There, away from the checkout, a step of training is run on a simulated GPU, the commands are
asked for help, and the environment's packages are checked. With `--notebooks` the extra `course` is installed too, and
each notebook is executed in an empty folder: it runs, or its error names the file of the course's folder that it reads.

`--torch VERSION` (default: that of constraints.txt); `--index URL`: where torch comes from (default: pip's own index).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEP = """
import warnings
warnings.simplefilter("error")
import torch, simgpu
with simgpu.simulated_gpu("A100-80GB"):
    torch.nn.Linear(1024, 1024, device="cuda")(torch.zeros(8, 1024, device="cuda")).sum().backward()
    print("peak:", torch.cuda.max_memory_allocated(), "B")
print("simgpu", simgpu.__version__)
"""
OUTSIDE = "of the course's folder, which is not installed with the package"


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status: 1 if anything that was tried did not work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default=pinned("torch"), metavar="VERSION")
    parser.add_argument("--index", metavar="URL", help="the package index to take torch from")
    parser.add_argument("--notebooks", nargs="*", metavar="NOTEBOOK", help="these, or all")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        wheel = build(here)
        python = environment(here / "venv", wheel, options.torch, options.index)
        nowhere = here / "nowhere"
        nowhere.mkdir()
        ok = alone(python, nowhere)
        if options.notebooks is not None:
            given = [Path(name).resolve() for name in options.notebooks]
            ok &= notebooks(python, wheel, nowhere, given or sorted((ROOT / "notebooks").glob("*.ipynb")))
    print("all of it works" if ok else "some of it does not work")
    return 0 if ok else 1


def pinned(package: str) -> str:
    """The version of a package in constraints.txt."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{package}==([^\s;]+)", text, re.MULTILINE)
    if found is None:
        raise LookupError(f"constraints.txt has no version of {package}")
    return found[1]


def build(folder: Path) -> Path:
    """The wheel of this checkout, made from its source distribution, so that the two hold the same."""
    clean = folder / "source"
    listed = call("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, listed):
        (clean / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            (clean / name).write_bytes((ROOT / name).read_bytes())
    call(sys.executable, "-m", "venv", str(folder / "builder"))
    builder = python_of(folder / "builder")
    pip(builder, "install", "setuptools>=77")
    made = folder / "made"
    backend = "from setuptools import build_meta as b; import sys; print(b.build_sdist(sys.argv[1]))"
    source = made / call(str(builder), "-c", backend, str(made), cwd=clean).splitlines()[-1]
    pip(builder, "wheel", "--no-deps", "--wheel-dir", str(made), str(source))
    (wheel,) = made.glob("*.whl")
    print(f"{source.name}: {source.stat().st_size:,} B; {wheel.name}: {wheel.stat().st_size:,} B")
    return wheel


def environment(folder: Path, wheel: Path, torch: str, index: str | None) -> Path:
    """The Python of an empty environment that has torch, and then the wheel."""
    venv.EnvBuilder(with_pip=True, symlinks=os.name != "nt").create(folder)
    python = python_of(folder)
    pip(python, "install", f"torch=={torch}", *(["--index-url", index] if index else []))
    pip(python, "install", str(wheel))
    return python


def alone(python: Path, nowhere: Path) -> bool:
    """Whether the package works with nothing but what it asks for, in a folder that is not the checkout's."""
    tried = [
        ("pip check", ["-m", "pip", "check"]),
        ("a step of training", ["-c", STEP]),
        ("python -m simgpu", ["-m", "simgpu", "--help"]),
        ("simgpu run", ["-m", "simgpu", "run", "--gpu", "T4", "step.py"]),
    ]
    (nowhere / "step.py").write_text(
        "import torch\nmodel = torch.nn.Linear(64, 64).cuda()\nmodel(torch.zeros(8, 64).cuda()).sum().backward()\n"
    )
    worked = [works(name, [str(python), *command], nowhere) for name, command in tried]  # all, also after a failure
    return all(worked)


def notebooks(python: Path, wheel: Path, nowhere: Path, paths: list[Path]) -> bool:
    """Whether each notebook runs in an empty folder, or says which file of the course's folder it wants."""
    pip(python, "install", "-c", str(ROOT / "constraints.txt"), f"{wheel}[course]")
    ok = works("pip check, with the extra course", [str(python), "-m", "pip", "check"], nowhere)
    for path in paths:
        own = nowhere / path.stem
        own.mkdir()
        (own / path.name).write_bytes(path.read_bytes())
        command = [str(python), "-m", "nbconvert", "--to", "notebook", "--execute", "--output", "done", path.name]
        done = subprocess.run(command, cwd=own, env=outside(), capture_output=True, text=True)
        last = (done.stderr.strip().splitlines() or [""])[-1]
        fine = done.returncode == 0 or OUTSIDE in last
        print(f"[{'OK' if fine else 'FAIL'}] {path.name}" + (f": {last}" if done.returncode else ""), flush=True)
        ok &= fine
    return ok


def works(name: str, command: list[str], folder: Path) -> bool:
    """Whether a command ends with status 0 in the folder; a line about it."""
    done = subprocess.run(command, cwd=folder, env=outside(), capture_output=True, text=True)
    lines = (done.stdout + done.stderr).strip().splitlines() or [""]
    fine = done.returncode == 0
    print(f"[{'OK' if fine else 'FAIL'}] {name}: {lines[0] if fine else lines[-1]}", flush=True)
    return fine


def outside() -> dict[str, str]:
    """The environment's variables without those that lead to this checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pip(python: Path, *arguments: str) -> None:
    call(str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments)


def call(*command: str, cwd: Path | None = None) -> str:
    """What a command prints. Ends the program with what it said if it fails."""
    done = subprocess.run(command, cwd=cwd, env=outside(), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
