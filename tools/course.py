"""Sets up the course in a virtual environment of its own, then opens it, tests it, or makes its editions.

    python course.py open                     your own copy of the course, in mine/, in JupyterLab
    python course.py open notebooks/03*       the same, at one chapter
    python course.py test                     every test, every notebook included
    python course.py test notebooks/03*       what follows the command is passed on (here: to pytest)
    python course.py grade mine/03*.ipynb     points for a reader's answers, judged by the course's own exercises
    python course.py student                  the notebooks without outputs and solutions, in student/
    python course.py slides                   the lecture of each notebook, in slides/
    python course.py site                     the course as a site, in site/: open site/index.html
    python course.py translate zh             the notebooks in Chinese, in notebooks-zh_CN/
    python course.py site --language zh       the site in Chinese, in site-zh_CN/
    python course.py rehearse H200            the notebooks as a simulated H200 prints them, in rehearsed/
    python course.py gpu                      the notebooks on this machine's GPU, compared with its simulated twin
    python course.py setup                    the environment alone

Python 3.10 or later is all it needs; only the standard library is used here. The first run installs the
versions of constraints.txt into .venv, those that the command needs; a later one adds what another command needs, or
does it again if what it depends on has changed. What pip prints goes to labkit-setup.log in that folder.
LABKIT_TORCH_INDEX, if set, is the package index to take torch from; set to nothing, it means pip's own.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import http.client
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import urllib.request
import venv
from pathlib import Path

from tools import workspace_copy

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
MINE = "mine"  # the reader's copy of the notebooks, beside them, so that their links lead to the same places
FIRST_NOTEBOOK = "00_out_of_memory.ipynb"
STAMP = "labkit-setup.json"
LOG = "labkit-setup.log"  # what pip prints
PYODIDE = "flet-web"  # the package that carries Pyodide's files, for the site's playground
LAST = 8  # lines of the log that an error shows
COURSE_GPU = "A100-80GB"  # the GPU that the stored outputs of the notebooks are of

# PyTorch's own wheel indexes (pytorch.org, "Get started"). PyPI's wheel for Linux holds the CUDA build and
# its wheel for Windows the CPU build: a Linux machine without a GPU and a Windows machine with one want
# the other.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_INDEX = "https://download.pytorch.org/whl/cu130"


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status. Whatever stops the set-up is said in one line."""
    parser = argparse.ArgumentParser(
        prog="course.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment (default: .venv)")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on")
    options = parser.parse_args(argv)
    try:
        return do(options.command, options.arguments, options.venv.absolute())
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        return 130


def do(command: str, arguments: list[str], folder: Path) -> int:
    """One command, with the environment `folder`; its exit status."""
    if command != "grade":
        arguments = expand(arguments)
    check(command, arguments)
    try:
        python = set_up(folder, needs(command))
    except OSError as error:
        sys.exit(f"course: the set-up in {folder} stopped: {error}{nearly_full(folder)}")
    except subprocess.CalledProcessError as error:  # of venv, which runs ensurepip and keeps what that prints
        said = (error.output or b"").decode(errors="replace").strip().splitlines() or [f"status {error.returncode}"]
        sys.exit(f"course: the set-up in {folder} stopped in ensurepip: {said[-1]}{nearly_full(folder)}")
    return COMMANDS[command](python, arguments)


def check(command: str, arguments: list[str]) -> None:
    """Ends the program, before anything is set up, if a command cannot do with these arguments."""
    if any(argument.partition("=")[0] == "--venv" for argument in arguments):
        sys.exit(f"--venv goes before the command: course.py --venv FOLDER {command}")
    if command == "setup" and arguments:
        sys.exit(f"setup takes no arguments; given: {' '.join(arguments)}")
    if command == "translate" and not arguments:
        sys.exit(f"translate wants a language: {', '.join(languages()) or 'there is none in translations/'}")
    if command == "translate" and not arguments[0].startswith("-") and not spoken(arguments[0]):
        sys.exit(f"no language {arguments[0]!r} in translations/; there are: {', '.join(languages()) or 'none'}")
    if command == "rehearse" and not arguments:
        sys.exit("rehearse wants the name of a GPU, e.g. H200, and may be given notebooks after it.")
    if command == "rehearse":
        known(arguments[0])
    if command == "grade":
        gradable(arguments)
        return
    if command == "gpu" and "LABKIT_GPU" in os.environ:
        sys.exit(f"gpu is for a real one, and LABKIT_GPU={os.environ['LABKIT_GPU']} asks for a simulated one.")
    missing = [name for name in split(arguments)[0] if not (ROOT / name).is_file()]
    if missing:
        sys.exit(f"no such notebook: {', '.join(missing)}{nearest(missing[0])}")
    for name in arguments:
        path = name.partition("::")[0]
        if path.startswith(("notebooks/", "tests/")) and not (ROOT / path).exists():
            sys.exit(f"no such file: {path}{nearest(path)}")
    first = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    if command == "open" and first and not (ROOT / first).exists():
        sys.exit(f"open wants a notebook, not {first!r}{nearest(first)}")


def nearest(name: str) -> str:
    """The notebook that somebody may have meant, for the end of a message; nothing if none is near."""
    known = {path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    stem = Path(name).stem.rstrip("*?")
    like = [one for one in known if stem and one.startswith(stem)] or difflib.get_close_matches(stem, known)
    return f"; did you mean {known[like[0]].relative_to(ROOT).as_posix()}?" if like else ""


def languages() -> list[str]:
    """The languages of translations/."""
    folder = ROOT / "translations"
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def spoken(name: str) -> bool:
    """Whether a name is that of a language there, or of its kind: "zh" of "zh_CN" (tools/translation/catalogues.py)."""
    asked = name.replace("-", "_").lower()
    return any(asked in (one.lower(), one.lower().split("_")[0]) for one in languages())


def gradable(arguments: list[str]) -> None:
    """Ends the program if no notebook is named, or one that is not there. Status 2: it could not be graded."""
    notebooks, others = split(arguments)
    if "--help" in others or "-h" in others:
        return
    if not notebooks and not any(Path(other).exists() for other in others):
        say("grade wants a notebook, e.g. mine/03_a_linear_model.ipynb; it takes --json FILE and --pass PERCENT.")
        sys.exit(2)
    missing = [name for name in notebooks if not Path(name).is_file()]
    if missing:
        say(f"no such notebook: {', '.join(missing)}")
        sys.exit(2)


def known(gpu: str) -> None:
    """Ends the program if a GPU is none of those that can be simulated."""
    sys.path.insert(0, str(ROOT))
    from simgpu.gpus.specs import spec  # it needs the standard library only

    try:
        spec(gpu)
    except ValueError as error:
        sys.exit(f"course: {error}")
    finally:
        sys.path.remove(str(ROOT))


# --- the environment ---------------------------------------------------------------------------------


def needs(command: str) -> set[str]:
    """The extras of pyproject.toml that a command needs, and PYODIDE where it builds the playground."""
    more = {
        "test": {"test", "docs", PYODIDE},
        "setup": {"test", "docs"},
        "gpu": {"test"},
        "site": {"docs", PYODIDE},
        "slides": {"docs"},
        "translate": {"docs"},
    }
    return {"course"} | more.get(command, set())


def set_up(folder: Path, extras: set[str]) -> Path:
    """Makes the virtual environment `folder` hold the course with these extras, and returns its Python; quick if it
    does."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    index = torch_index(os.environ, platform.system(), has_nvidia_gpu())
    wanted = fingerprint(index)
    stamp = folder / STAMP
    before = written(stamp)
    had = before.pop("extras", None) if isinstance(before, dict) else None
    had = set(had) if isinstance(had, list) and before == wanted else set()
    if python.exists() and extras <= had:
        return python

    extras |= had
    say(f"setting up the course in {folder} (once; some minutes); what pip prints goes to {folder / LOG}")
    create(folder, python)
    stamp.unlink(missing_ok=True)
    if index and not answers(index):
        say(f"{index} cannot be reached: torch comes from where pip is set up to look.")
        if index == CPU_INDEX:
            say("On PyPI that is the CUDA build, several times as large; it works without a GPU too.")
        index = None
    constraints = ["-c", str(ROOT / "constraints.txt")]
    if index:
        # First and alone, so that every other package comes from where pip is set up to look.
        with step("PyTorch, some 200 MB"):
            pip(python, "install", "--no-compile", "--no-deps", *constraints, "--index-url", index, "torch")
    # pip compiles one file after the other, for minutes; Python compiles what it imports, when it first does.
    named = ",".join(sorted(extras - {PYODIDE}))
    with step(f"the packages of [{named}]"):
        pip(python, "install", "--no-compile", *constraints, "-e", f"{ROOT}[{named}]")
    if PYODIDE in extras:
        # Pyodide's files without the framework that they come with; all but the playground works without.
        with step(f"{PYODIDE}, for the site's playground"):
            found = pip(python, "install", "--no-deps", *constraints, PYODIDE, optional=True)
        if not found:
            say(f"{PYODIDE} could not be installed: the site will have no playground; all else works.")
    stamp.write_text(json.dumps({**wanted, "extras": sorted(extras)}))
    return python


@contextlib.contextmanager
def step(what: str):
    """Around a step of the set-up: one line, with its seconds at the end."""
    began = time.monotonic()
    print(f"course: installs {what} ...", end="", flush=True)
    try:
        yield
    except BaseException:
        print(flush=True)
        raise
    print(f" {time.monotonic() - began:.0f} s", flush=True)


def written(stamp: Path) -> dict | None:
    """What an earlier set-up noted when it was done; None if it was not, or if the note cannot be read."""
    try:
        return json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def nearly_full(folder: Path) -> str:
    """A hint if the disk of `folder` has less than 1 GB left, else nothing."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    return f" ({free / 1e6:.0f} MB are free on this disk, and some 2 GB are wanted)" if free < 1e9 else ""


def torch_index(environment, system: str, nvidia: bool) -> str | None:
    """The index to take torch from, or None for the one pip is set up with.

    LABKIT_TORCH_INDEX decides where it is set; set to nothing, it means pip's own.
    """
    chosen = environment.get("LABKIT_TORCH_INDEX")
    if chosen is not None:
        return chosen.strip() or None
    if system == "Linux" and not nvidia:
        return CPU_INDEX
    if system == "Windows" and nvidia:
        return CUDA_INDEX
    return None


def has_nvidia_gpu() -> bool:
    """Whether NVIDIA's driver is installed here and lists a GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        listed = subprocess.run([tool, "--list-gpus"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU 0" in listed.stdout


def fingerprint(index: str | None) -> dict:
    """What an environment depends on: while this is the same, it need not be made again."""
    files = {name: ROOT / name for name in ("constraints.txt", "pyproject.toml")}
    for path in files.values():
        if not path.is_file():
            sys.exit(f"{path} is missing: it belongs to the course; take it from the repository again.")
    return {
        "python": platform.python_version(),
        "torch index": index,
        "folder": str(ROOT),
        **{name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()},
    }


def create(folder: Path, python: Path) -> None:
    """Makes an empty virtual environment, or keeps the one that is there if its Python is this one, with a pip."""
    if folder.exists() and not folder.is_dir():
        sys.exit(f"{folder} is a file: choose a folder with --venv.")
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "pyvenv.cfg").exists():
            sys.exit(f"{folder} holds files and is not a virtual environment: choose another with --venv.")
        if python.exists() and version_of(python) == platform.python_version() and has_pip(python):
            return
    with_pip = importlib.util.find_spec("ensurepip") is not None
    venv.EnvBuilder(clear=True, with_pip=with_pip, symlinks=os.name != "nt").create(folder)
    if not with_pip:
        # Debian and Ubuntu keep ensurepip in a package of its own; the pip of this Python does as well.
        if importlib.util.find_spec("pip") is None:
            sys.exit("This Python has neither pip nor ensurepip (Debian, Ubuntu: apt install python3-venv).")
        call([sys.executable, "-m", "pip", "--python", str(python), "install", "pip"], folder / LOG)


def version_of(python: Path) -> str | None:
    """The version of an environment's Python, or None if it no longer runs."""
    ask = [str(python), "-c", "import platform; print(platform.python_version())"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def has_pip(python: Path) -> bool:
    """Whether an environment has a pip that runs; one whose making was interrupted may have none."""
    try:
        return subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


def answers(index: str, seconds: float = 10) -> bool:
    """Whether the package index answers. pip would ask it again and again before giving up."""
    try:
        with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=seconds):
            return True
    except (OSError, ValueError, http.client.HTTPException):  # of no URL at all: ValueError, or InvalidURL
        return False


def pip(python: Path, *arguments: str, optional: bool = False) -> bool:
    """Runs the environment's pip; what it prints goes to the log. Whether it succeeded, where it is `optional`."""
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    log = python.parents[1] / LOG
    return call([str(python), "-m", "pip", *arguments, *quiet], log, optional)


def call(command: list[str], log: Path, optional: bool = False) -> bool:
    """Runs a step of the set-up; ends the program if it fails, with the last lines of the log and its path."""
    with log.open("a", encoding="utf-8") as written:
        written.write(f"$ {' '.join(command)}\n")
        written.flush()
        done = subprocess.run(command, cwd=ROOT, stdout=written, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    if done.returncode == 0 or optional:
        return done.returncode == 0
    print(flush=True)
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST:]:
        print(f"  {line}")
    say(f"this step of the set-up failed: {' '.join(command)}{nearly_full(ROOT)}")
    say(f"the lines above are the last ones of {log}; the same command continues from here")
    sys.exit(done.returncode)


# --- the commands: each is given the environment's Python and the rest of the command line ------------


def command_setup(python: Path, arguments: list[str]) -> int:
    say(f"ready: {python}")
    return 0


def command_open(python: Path, arguments: list[str]) -> int:
    notebooks, others = split(arguments)
    try:
        for line in workspace_copy.refresh(NOTEBOOKS, ROOT / MINE):
            say(line)
    except OSError as error:
        sys.exit(f"course: your copy of the notebooks cannot be written: {error}{nearly_full(ROOT)}")
    # Not as JupyterLab's own argument: then the notebooks' folder would be all that it shows.
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0 and "--allow-root" not in others
    if as_root:
        say("you are root, so JupyterLab is started with --allow-root")
        others.append("--allow-root")
    url = f"--LabApp.default_url=/lab/tree/{readers_path(notebooks[0] if notebooks else FIRST_NOTEBOOK)}"
    return run(python, "-m", "jupyterlab", f"--ServerApp.root_dir={ROOT}", url, *others)


def readers_path(notebook: str) -> str:
    """A notebook's path for JupyterLab: one of the course's is opened as the reader's copy of it."""
    path = Path(notebook)
    return f"{MINE}/{path.name}" if path.parent.name in ("", NOTEBOOKS.name) else path.as_posix()


def command_test(python: Path, arguments: list[str]) -> int:
    gpu = other_gpu(python) if not arguments else None
    if gpu:
        # Some bytes depend on the GPU, and the stored outputs are of the course's own.
        say(f"the notebooks are run on the simulated {gpu} first, then compared with this machine's real one")
        if failed := command_rehearse(python, [gpu]):
            return failed
        arguments = ["tests", f"rehearsed/{gpu}"]
    return run(python, "-m", "pytest", *arguments)


def other_gpu(python: Path) -> str | None:
    """labkit's name of the real GPU that the notebooks would run on, unless it is the course's own."""
    if "LABKIT_GPU" in os.environ or not has_nvidia_gpu():
        return None
    gpu = real_gpu(python)
    return gpu if gpu != COURSE_GPU else None


def real_gpu(python: Path) -> str | None:
    """labkit's name of the CUDA GPU that torch finds, or None. Ends the program if it is one that labkit lacks."""
    ask = (
        "import torch; from simgpu.gpus.specs import spec\n"
        "if torch.cuda.is_available(): print(spec(torch.cuda.get_device_name()).key)"
    )
    asked = subprocess.run([str(python), "-c", ask], cwd=ROOT, capture_output=True, text=True)
    if asked.returncode:
        sys.exit(f"The GPU of this machine cannot be told: {asked.stderr.strip().splitlines()[-1]}")
    return asked.stdout.strip() or None


def command_gpu(python: Path, arguments: list[str]) -> int:
    gpu = real_gpu(python)
    if gpu is None:
        sys.exit("torch finds no CUDA GPU on this machine.")
    notebooks, others = split(arguments)
    notebooks = notebooks or [path.relative_to(ROOT).as_posix() for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
    if gpu != COURSE_GPU:
        if failed := command_rehearse(python, [gpu, *notebooks]):
            return failed
        notebooks = [f"rehearsed/{gpu}/{Path(notebook).name}" for notebook in notebooks]
    return run(python, "-m", "pytest", *notebooks, *others)


def command_student(python: Path, arguments: list[str]) -> int:
    without = "--TagRemovePreprocessor.enabled=True", "--TagRemovePreprocessor.remove_cell_tags=solution"
    return convert(python, arguments, "student", "--to=notebook", "--ClearOutputPreprocessor.enabled=True", *without)


def command_slides(python: Path, arguments: list[str]) -> int:
    return run(python, "-m", "tools.slides", *arguments)


def command_rehearse(python: Path, arguments: list[str]) -> int:
    gpu, *notebooks = arguments
    options = "--to=notebook", "--execute"
    return convert(python, notebooks, f"rehearsed/{gpu}", *options, environment={"LABKIT_GPU": gpu})


def command_translate(python: Path, arguments: list[str]) -> int:
    return run(python, "-m", "tools.translation", "build", *arguments)


def command_site(python: Path, arguments: list[str]) -> int:
    return run(python, "-m", "tools.site", *arguments)


def command_grade(python: Path, arguments: list[str]) -> int:
    return run(python, "-m", "tools.grading", *arguments, environment={"PYTHONPATH": str(ROOT)}, folder=Path.cwd())


COMMANDS = {
    "open": command_open,
    "test": command_test,
    "grade": command_grade,
    "student": command_student,
    "slides": command_slides,
    "site": command_site,
    "translate": command_translate,
    "rehearse": command_rehearse,
    "gpu": command_gpu,
    "setup": command_setup,
}


def convert(python: Path, arguments: list[str], folder: str, *options: str, environment=None) -> int:
    """nbconvert, on the notebooks among the arguments or on all, into `folder` or a given --output-dir=."""
    notebooks, others = split(arguments)
    if not notebooks:
        notebooks = [str(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
    if not any(other.startswith("--output-dir") for other in others):
        others.append(f"--output-dir={ROOT / folder}")
    return run(python, "-m", "nbconvert", *options, *others, *notebooks, environment=environment)


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The notebooks among the arguments, and the others."""
    notebooks = [argument for argument in arguments if argument.endswith(".ipynb")]
    return notebooks, [argument for argument in arguments if not argument.endswith(".ipynb")]


def expand(arguments: list[str]) -> list[str]:
    """Arguments with * or ? as the files of the project they stand for: not every shell does it."""
    expanded = []
    for argument in arguments:
        wild = "/" in argument and any(mark in argument for mark in "*?")
        found = ROOT.glob(argument) if wild and not Path(argument).is_absolute() else []
        expanded += sorted(path.relative_to(ROOT).as_posix() for path in found) or [argument]
    return expanded


def run(python: Path, *arguments: str, environment=None, folder: Path = ROOT) -> int:
    """Runs the environment's Python, in the project's folder or another, and returns its exit status."""
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    seen = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(python.parent.parent), **(environment or {})}
    if arguments[1].partition(".")[0] == "tools" and "PYTHONSAFEPATH" in seen:  # `-m` leaves the project's folder out
        seen["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), seen.get("PYTHONPATH")]))
    with subprocess.Popen([str(python), *arguments], cwd=folder, env=seen) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue  # the program was interrupted as well, and JupyterLab asks before it ends


def say(message: str) -> None:
    print(f"course: {message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
