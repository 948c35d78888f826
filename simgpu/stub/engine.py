"""The engines that are there: which builds of PyTorch can run on the stub libraries, and the environment to run one.

An engine is a CUDA build of PyTorch and stub libraries compiled for it. The build is the installed one, where that is
a CUDA build, or a wheel that was unpacked into `home()` and is not installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from simgpu.gpus import specs
from simgpu.stub import compiler, devices, libraries

DEFAULT_VERSION = "2.13.0"
"""The version of PyTorch that is fetched where none is named: the one that stored results are of."""


class EngineError(RuntimeError):
    """The engine is not there, or cannot be on this machine. The message says what to do."""


def home() -> Path:
    """The folder of engines: `$SIMGPU_ENGINES`, or `simgpu` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SIMGPU_ENGINES") or Path(cache) / "simgpu")


def supported() -> str:
    """Returns "" where the engine can run, and otherwise why it cannot and what to do."""
    machine = os.uname().machine if hasattr(os, "uname") else "this machine"
    if sys.platform.startswith("linux") and machine == "x86_64":
        return ""
    where = {"win32": "Windows", "darwin": "macOS"}.get(sys.platform, sys.platform)
    if sys.platform == "win32":
        do = "Install WSL (`wsl --install`) and run simgpu there."
    else:
        do = "Run simgpu in a Linux container: `docker run --platform linux/amd64 -it -v .:/work python:3.12`."
    return f"The stub engine needs Linux on x86-64, and this is {where} on {machine}. {do}"


@dataclass(frozen=True)
class Engine:
    """A CUDA build of PyTorch, and what it needs to run on stub libraries.

    version: of torch, "2.13.0". torch: the folder of the package `torch`. installed: whether it is the interpreter's
    own; otherwise its folder must come first on the path. triton: the folder that holds the package `triton` that
    belongs to it, None where it is installed or absent.
    """

    version: str
    torch: Path
    installed: bool
    triton: Path | None

    def stubs(self, extensions: bool = False) -> Path:
        """The folder of the stub libraries, which are compiled now where that was not done yet.

        `extensions`: also export what the installed CUDA extensions ask for. Raises EngineError where there is no
        compiler, or where the CUDA headers are missing.
        """
        return _stubs(self, libraries.extensions() if extensions else [])

    @property
    def cuda(self) -> str:
        """The version of CUDA that this torch was built for, "12.6"; "" where its version.py names none."""
        found = re.search(r"^cuda\b[^=]*= ['\"]([\d.]+)", (self.torch / "version.py").read_text(), re.M)
        return found[1] if found else ""

    def facts(self, stubs: Path) -> dict:
        """Returns what the build says of itself: `architectures` that its kernels are compiled for, and `cuda`."""
        return json.loads((stubs / FACTS).read_text())


FACTS = "engine.json"


def unpacked(version: str) -> Engine | None:
    """The engine of a wheel that was unpacked into `home()`, or None."""
    folder = home() / f"torch-{version}"
    if not (folder / "torch" / "lib" / "libtorch_cuda.so").exists():
        return None
    return Engine(version, folder / "torch", False, _triton_of(folder))


def _triton_of(folder: Path) -> Path | None:
    requirement = required_triton(folder)
    place = triton_folder(requirement) if requirement else None
    return place if place is not None and (place / "triton").is_dir() else None


def required_triton(folder: Path) -> str:
    """The triton that the metadata of an unpacked wheel of torch requires, as pip writes it: "triton==3.7.1" or
    "triton~=3.9.0"; "" where it requires none."""
    for metadata in folder.glob("torch-*.dist-info/METADATA"):
        if match := re.search(r"^Requires-Dist: triton\s*\(?([=~<>!][^;)\n]*)", metadata.read_text(), re.M):
            return f"triton{match[1].replace(' ', '')}"
    return ""


def triton_folder(requirement: str) -> Path:
    """Where the triton of a requirement is unpacked, by the first version that the requirement names."""
    found = re.search(r"\d[\w.+]*", requirement)
    return home() / f"triton-{found[0] if found else requirement}"


def installed() -> Engine | None:
    """The engine of the interpreter's own torch, where that is a CUDA build; None otherwise. Imports nothing."""
    spec = importlib.util.find_spec("torch")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    if folder is None or not (folder / "lib" / "libtorch_cuda.so").exists() or home() in folder.parents:
        return None
    version = re.search(r"__version__ = '([^']+)'", (folder / "version.py").read_text())
    return Engine(version[1].split("+")[0] if version else "", folder, True, None)


def engines() -> list[Engine]:
    """Returns every installed engine, the interpreter's own first, then the newest."""
    own = installed()
    folders = sorted(home().glob("torch-*"), key=lambda path: _ordered(path.name), reverse=True)
    found = [unpacked(path.name.removeprefix("torch-")) for path in folders if not path.name.endswith(".wheels")]
    return [one for one in (own, *found) if one is not None and one.torch.is_dir()]


def _ordered(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def find(version: str | None = None) -> Engine:
    """The engine of a version of torch; without one, the installed build, `DEFAULT_VERSION`, or the newest.

    Raises EngineError where it is not there, or this is not Linux on x86-64.
    """
    if why := supported():
        raise EngineError(why)
    there = engines()
    if version is not None:
        there = [one for one in there if one.version == version]
    preferred = [one for one in there if one.installed or one.version == DEFAULT_VERSION]
    if not there:
        wanted = "" if version is None else f" --torch {version}"
        raise EngineError(f"the stub engine is not installed: simgpu engine install{wanted}")
    return (preferred or there)[0]


def headers_of(runtime: int) -> Path | None:
    """The folder of the headers of a major version of CUDA, or None: NVIDIA's own, or those in triton's wheel.

    Within a major version CUDA keeps the form of its functions, so any minor version serves.
    """
    places = sorted(home().glob("headers*/nvidia/*/include"), reverse=True)
    places += sorted(home().glob("triton-*/triton/backends/nvidia/include"), reverse=True)
    for spec in filter(None, [importlib.util.find_spec("triton")]):
        places.append(Path(spec.origin or "").parent / "backends" / "nvidia" / "include")
    for place in places:
        header = place / "cuda_runtime_api.h"
        if header.exists() and f"CUDART_VERSION  {runtime}" in header.read_text(errors="replace"):
            return place
    return None


def _stubs(engine: Engine, extensions: list[Path]) -> Path:
    stamp = [f"{path} {path.stat().st_mtime_ns}" for path in extensions]
    key = libraries.sources_digest()
    key += f"-{hashlib.sha256(repr(stamp).encode()).hexdigest()[:8]}" if stamp else ""
    place = home() / f"stubs-{engine.version}-{key}"
    if (place / FACTS).exists():
        return place
    with _locked(home() / f".{place.name}.lock"):
        if not (place / FACTS).exists():
            wanted = libraries.Wanted().add([*libraries.of_torch(engine.torch), *extensions])
            headers = headers_of(wanted.runtime)
            if headers is None:
                raise EngineError(f"the headers of CUDA {wanted.runtime} are missing: simgpu engine install")
            try:
                libraries.build(wanted.add_declared(headers), headers, place)
            except RuntimeError as error:
                raise EngineError(str(error)) from None
            (place / FACTS).write_text(json.dumps(_asked(engine, place)))
    return place


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two processes do not compile one folder at once."""
    import fcntl  # Windows has none

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_QUESTIONS = """
import json, torch
flags = torch._C._cuda_getArchFlags() or ""
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "architectures": flags.split()}))
"""


def _asked(engine: Engine, stubs: Path) -> dict:
    environ = paths(engine, stubs, os.environ)
    done = subprocess.run([sys.executable, "-c", _QUESTIONS], env=environ, capture_output=True, text=True)
    if done.returncode:
        raise EngineError(f"torch {engine.version} does not load on its stub libraries:\n{done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def paths(engine: Engine, stubs: Path, environ: Mapping[str, str], *first: str) -> dict[str, str]:
    """`environ`, with what makes Python import this torch and load these libraries. `first`: folders for PYTHONPATH.

    An installed torch names the folders of NVIDIA's wheels in itself, and those are searched first. So the stub
    libraries are preloaded there.
    """
    own = [] if engine.installed else [str(engine.torch.parent)]
    own += [str(engine.triton)] if engine.triton else []
    preloaded = [stubs / libraries.PRELOADED]
    if engine.installed:
        preloaded += sorted(path for path in stubs.glob("lib*.so.*") if path.name != libraries.PRELOADED)
    found = {
        **environ,
        "LD_LIBRARY_PATH": _joined(str(stubs), str(engine.torch / "lib"), environ.get("LD_LIBRARY_PATH", "")),
        "LD_PRELOAD": _joined(*map(str, preloaded), environ.get("LD_PRELOAD", "")),
        "PYTHONPATH": _joined(*own, *first, environ.get("PYTHONPATH", "")),
        "TRITON_LIBCUDA_PATH": str(stubs),
        "USE_PYTORCH_KERNEL_CACHE": "0",  # what the stub of NVRTC compiles is not a kernel
    }
    cc = compiler.as_program(home() / "bin")
    if cc is not None and "CC" not in environ:
        found["CC"] = str(cc)
    return found


def caches(engine: Engine) -> dict[str, str]:
    """The variables of Inductor's and Triton's caches, apart from those of a GPU, because nothing is timed here.

    What is generated there notes its bytes, which older files in other folders do not (`launches.with_bytes`).
    """
    place = home() / "compiled" / f"{engine.version}-with-bytes"
    return {"TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"), "TRITON_CACHE_DIR": str(place / "triton")}


def _joined(*parts: str) -> str:
    """Parts of a path, each once, the empty ones skipped."""
    split = (one for part in parts for one in part.split(os.pathsep))
    return os.pathsep.join(dict.fromkeys(filter(None, split)))


def device(engine: Engine, stubs: Path, gpu: str) -> dict[str, str]:
    """The `MOCK_*` variables of a GPU for this build: `devices.environment`, its bandwidth, whose kernels it runs."""
    architectures = [int(found[1]) for text in engine.facts(stubs)["architectures"] if (found := _SM.match(text))]
    return {
        **devices.environment(gpu),
        "MOCK_PTX": str(devices.kernels_of(gpu, architectures)),
        "MOCK_BANDWIDTH": str(int(specs.spec(gpu).bandwidth)),
    }


_SM = re.compile(r"sm_(\d+)")
