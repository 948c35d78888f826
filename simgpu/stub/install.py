"""Fetches what the stub engine needs, once: a CUDA wheel of PyTorch, its triton, CUDA's headers; none is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from simgpu.stub import compiler, engine, libraries
from simgpu.stub.engine import DEFAULT_VERSION, Engine, EngineError, home

MEGABYTE = 10**6


def install(
    version: str | None = None,
    say: Callable[[str], object] = print,
    index: str | None = None,
    unpack: bool = False,
) -> Engine:
    """Makes the engine of a version of torch ready, and says what was fetched; what is there is kept.

    Without a version, an installed CUDA build is used as it is, and else `DEFAULT_VERSION` is fetched. `index`: a
    package index in PyPI's place. `unpack`: the wheel is fetched even where that version is installed.
    Raises EngineError where this machine cannot run it.
    """
    if why := engine.supported():
        raise EngineError(why)
    if compiler.command() is None:
        say("No C compiler is here, so the one of the ziglang wheel is fetched.")
        _pip(["install", "-q", "ziglang"])
    own = engine.installed()
    if own is not None and version in (None, own.version) and not unpack:
        say(f"torch {own.version}, installed in {own.torch.parent}: used as it is, without NVIDIA's libraries")
        found = own
    else:
        found = _fetched(version or DEFAULT_VERSION, say, index)
    if engine.headers_of(libraries.Wanted().add(libraries.of_torch(found.torch)).runtime) is None:
        _fetch(header_wheels(found.cuda), home() / f"headers-{found.cuda}", say, then=_together)
    stubs = found.stubs()
    facts = found.facts(stubs)
    many = sum(1 for _ in stubs.glob("lib*.so*"))
    say(f"{many} stub libraries in {stubs}: torch {facts['torch']}, CUDA {facts['cuda']}")
    return found


def header_wheels(cuda: str) -> list[str]:
    """The wheels that hold the headers of a version of CUDA, such as "12.6"; EngineError for one older than 12.

    From CUDA 13 on their names have no suffix, and the folder crt has a wheel of its own.
    """
    major = int(cuda.split(".")[0] or 0)
    if major < 12:
        raise EngineError(f"this PyTorch was built for CUDA {cuda or '(unknown)'}; the stub engine needs 12 or newer")
    names = ("runtime-cu12", "nvcc-cu12") if major == 12 else ("runtime", "crt")
    return [f"nvidia-cuda-{name}=={cuda}.*" for name in names]


def _together(content: Path) -> None:
    """Moves the folder crt of CUDA 12 to the headers that include it, and removes the compiler it came with."""
    compiler_wheel = content / "nvidia" / "cuda_nvcc"
    if (compiler_wheel / "include" / "crt").is_dir():
        os.replace(compiler_wheel / "include" / "crt", content / "nvidia" / "cuda_runtime" / "include" / "crt")
        shutil.rmtree(compiler_wheel)


def _fetched(version: str, say, index: str | None) -> Engine:
    folder = home() / f"torch-{version}"
    if not (folder / "torch").is_dir():
        _fetch([f"torch=={version}"], folder, say, index)
    triton = engine.required_triton(folder)
    if triton and not (engine.triton_folder(triton) / "triton").is_dir():
        _fetch([triton], engine.triton_folder(triton), say, index)
    found = engine.unpacked(version)
    if found is None:
        raise EngineError(f"the wheel of torch {version} that was fetched is not a CUDA build")
    return found


def _fetch(
    requirements: Sequence[str],
    target: Path,
    say: Callable[[str], object],
    index: str | None = None,
    then: Callable[[Path], None] | None = None,
) -> None:
    """Downloads wheels and unpacks them into one folder, which appears complete or not at all.

    `then`: what is done with that folder before it appears.
    """
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=home()) as scratch:
        wheels, content = Path(scratch, "wheels"), Path(scratch, "content")
        say(f"fetching {', '.join(requirements)} …")
        arguments = ["download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(wheels), *requirements]
        _pip([*arguments, *(["--index-url", index] if index else [])])
        for wheel in sorted(wheels.glob("*.whl")):
            size = wheel.stat().st_size
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(content)
                unpacked = sum(one.file_size for one in archive.infolist())
            for name in ("bin", "*/bin", "*/*/bin", "*/*/*/bin"):  # a zip's programs lose their mode
                for program in (one for at in content.glob(name) for one in at.iterdir() if one.is_file()):
                    program.chmod(0o755)
            say(f"  {wheel.name}: {size / MEGABYTE:,.0f} MB, {unpacked / MEGABYTE:,.0f} MB unpacked in {target}")
            wheel.unlink()
        if then is not None:
            then(content)
        if not target.exists():
            os.replace(content, target)


def _pip(arguments: list[str]) -> None:
    # PyPI's wheel is the CUDA one. A pip that is configured for another index may offer a CPU build of that version.
    environ = {k: v for k, v in os.environ.items() if k != "PIP_FIND_LINKS"} | {"PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, "-m", "pip", *arguments]
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        uv = shutil.which("uv")
        if uv is None or arguments[0] != "install":
            raise EngineError("pip is not installed for this Python: python -m ensurepip")
        command = [uv, "pip", *arguments, "--python", sys.executable]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise EngineError(f"{' '.join(arguments[-2:])}: {last}")


def status() -> str:
    """Describes the installation: the engines, their triton and stub libraries, the compiler, and the folder."""
    why = engine.supported()
    if why:
        return why
    found = compiler.command()
    lines = [f"folder     {home()}", f"compiler   {' '.join(found) if found else 'none: pip install ziglang'}"]
    there = engine.engines()
    for one in there:
        place = "installed" if one.installed else "unpacked"
        ready = sorted(home().glob(f"stubs-{one.version}-{libraries.sources_digest()}*/{engine.FACTS}"))
        triton = one.triton.name if one.triton else "the installed triton" if one.installed else "no triton"
        stubs = "stub libraries ready" if ready else "stub libraries are compiled at first use"
        lines.append(f"torch {one.version:<9}{place}, {triton}, {stubs}: {one.torch.parent}")
    if not there:
        lines.append("no engine  simgpu engine install")
    return "\n".join(lines)
