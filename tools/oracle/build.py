"""Build the oracle: a CUDA wheel of PyTorch, unpacked and not installed, and stub CUDA libraries for it to
load.

Needs Linux x86-64, gcc and binutils; 0.5 GB to download and 1.2 GB on disk for each version of torch. The
wheel must be for the Python that will run it, so it is fetched with the Python that runs this.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

STUBS = Path(__file__).parent / "stubs"
# The stubs are compiled against the headers of CUDA 13.0; torch 2.11 to 2.15 load them alike.
HEADERS = ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88")

# For a symbol without a version: the library it belongs to, longest prefix first.
OWNERS = {
    "nvshmem": "libnvshmem_host",
    "nvml": "libnvidia-ml",
    "nccl": "libnccl",
    "cusparseLt": "libcusparseLt",
    "cuFile": "libcufile",
    "cu": "libcuda",
}
CUDA_LIBRARY = re.compile(r"NEEDED\s+(lib(?:cu|nccl|nvrtc|nvshmem|nvidia)[\w-]*\.so[.\d]*)")
UNDEFINED_SYMBOL = re.compile(r"\s[Uw]\s(\w+)(?:@+([\w.-]+))?")
UNVERSIONED = re.compile(r"(nvshmem|nccl|cu[A-Z]|cusparseLt|nvml)")
DEFINITION = re.compile(r"^(?:static )?(?:[\w\* ]+?)\b(\w+)\(", re.M)
MADE_BY_MACRO = re.compile(r"^MAKE_HANDLE\((\w+)\)", re.M)


def home() -> Path:
    """The folder of built oracles: `$CUDA_ORACLE`, or `cuda-oracle` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("CUDA_ORACLE") or Path(cache) / "cuda-oracle")


def build(version: str, index: str | None = None) -> None:
    """Make the oracle for `version` of torch in `home()`; what is there already is kept, the stubs are always
    compiled. `index`: where the wheel comes from, if not from PyPI: PyTorch's own index has the builds of each night.

    Raises RuntimeError where this machine cannot: not Linux x86-64, or gcc, objdump or nm missing.
    """
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        raise RuntimeError(f"the oracle needs Linux on x86-64, this is {sys.platform} on {os.uname().machine}")
    missing = [tool for tool in ("gcc", "objdump", "nm") if shutil.which(tool) is None]
    if missing:
        raise RuntimeError(f"the oracle needs gcc and binutils; not found: {', '.join(missing)}")
    folder = home()
    torch_folder, headers = folder / f"torch-{version}", folder / "headers"
    if not (torch_folder / "torch").is_dir():
        _fetch([f"torch=={version}"], torch_folder, index)
    if not (headers / "nvidia").is_dir():
        _fetch(HEADERS, headers)
    compile_stubs(torch_folder / "torch" / "lib", folder / f"stubs-{version}", headers / "nvidia/cu13/include")


def _fetch(requirements, target: Path, index: str | None = None) -> None:
    # PyPI's wheel is the CUDA one. A pip configured for another index or folder may offer a CPU build of the
    # same version.
    environ = {k: v for k, v in os.environ.items() if k != "PIP_FIND_LINKS"} | {"PIP_CONFIG_FILE": os.devnull}
    wheels = target.with_name(target.name + ".wheels")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), *requirements]
    command += ["--index-url", index] if index else []
    subprocess.run(command, env=environ, check=True)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    shutil.rmtree(wheels)


def compile_stubs(torch_lib: Path, output: Path, headers: Path) -> None:
    """Compile into `output` a stub of each CUDA library that the shared objects of `torch_lib` ask for.

    A symbol that `stubs/LIBRARY.c` or a file of `stubs/LIBRARY/` defines is taken from there; every other one is a
    function that returns 0.
    """
    output.mkdir(parents=True, exist_ok=True)
    sonames, symbols = _wanted(torch_lib)
    # cudart first: nvidia-ml's stub asks it how much memory is in use, and nccl's copies with it
    for base in sorted(sonames, key=lambda base: (base != "libcudart", base)):
        sources = sorted((STUBS / base).glob("*.c")) or list(STUBS.glob(f"{base}.c"))
        written = "\n".join(source.read_text() for source in sources)
        have = set(DEFINITION.findall(written)) | set(MADE_BY_MACRO.findall(written)) | {"__cudaInitModule"}
        rest = "".join(f"int {name}() {{ return 0; }}\n" for name in sorted(symbols[base] - have))
        generated, versions = output / f"{base}.c", output / f"{base}.map"
        generated.write_text(rest)
        tag = "NVSHMEM" if "nvshmem" in base else sonames[base].replace("-", "_")
        versions.write_text(f"{tag} {{ global: *; }};\n")
        command = ["gcc", "-w", "-shared", "-fPIC", "-O1", "-o", output / sonames[base], generated]
        command += [*sources, f"-I{headers}"] if sources else []
        command += [output / sonames["libcudart"]] if base in ("libnvidia-ml", "libnccl") else []
        subprocess.run(
            [*command, f"-Wl,-soname,{sonames[base]}", f"-Wl,--version-script={versions}", "-lpthread"],
            check=True,
        )


def _wanted(torch_lib: Path) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Of each CUDA library: its soname, and the symbols that torch's shared objects take from it."""
    sonames = {"libcuda": "libcuda.so.1", "libnvidia-ml": "libnvidia-ml.so.1"}
    undefined: list[tuple[str, str]] = []
    for library in sorted(torch_lib.glob("*.so*")):
        needed = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True).stdout
        sonames |= {name.split(".so")[0]: name for name in CUDA_LIBRARY.findall(needed)}
        table = ["nm", "-D", "--undefined-only", "--with-symbol-versions", library]
        undefined += UNDEFINED_SYMBOL.findall(subprocess.run(table, capture_output=True, text=True, check=True).stdout)
    by_version = {soname.replace("-", "_"): base for base, soname in sonames.items()}
    symbols: dict[str, set[str]] = {base: set() for base in sonames}
    for name, version in undefined:
        base = by_version.get(version.replace("-", "_"))
        if base is None and version in ("", "NVSHMEM") and UNVERSIONED.match(name):
            base = next(owner for prefix, owner in OWNERS.items() if name.startswith(prefix))
        if base in symbols:
            symbols[base].add(name)
    return sonames, symbols
