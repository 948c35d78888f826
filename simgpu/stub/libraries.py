"""Compiles the stub libraries: one for each CUDA library that a build of PyTorch, or an extension, asks for.

What a function must do is written in `sources/LIBRARY.c` or in the files of `sources/LIBRARY/`. Every other function
that is asked for, or that the CUDA headers declare, returns 0.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from simgpu.stub import compiler, elf

SOURCES = Path(__file__).parent / "sources"
PRELOADED = "libsimgpu.so"
"""A library that the processes of a run preload: NCCL's watchdog sees time pass as the program goes, and what was
remembered of a block is forgotten when PyTorch's allocator hands it out again."""

_LIBRARY = re.compile(r"(lib(?:cu|nccl|nvrtc|nvshmem|nvidia|nvJitLink|nvToolsExt)[\w-]*)\.so[.\d]*$")
_OWNERS = {  # of a symbol without a version: the library that it belongs to, longest prefix first
    "nvshmem": "libnvshmem_host",
    "nvml": "libnvidia-ml",
    "nccl": "libnccl",
    "nvrtc": "libnvrtc",
    "nvJitLink": "libnvJitLink",
    "cusparseLt": "libcusparseLt",
    "cublasLt": "libcublasLt",
    "cublas": "libcublas",
    "cudnn": "libcudnn",
    "cufft": "libcufft",
    "curand": "libcurand",
    "cusolver": "libcusolver",
    "cusparse": "libcusparse",
    "cupti": "libcupti",
    "cuFile": "libcufile",
    "cuda": "libcudart",
    "__cuda": "libcudart",
    "cu": "libcuda",
}
_UNVERSIONED = re.compile(
    r"nvshmem|nvml|nccl|nvrtc|nvJitLink|cuFile|__cuda[A-Z]|cu(?:blas|dnn|fft|rand|solver|sparse|pti|da)?(?:Lt)?[A-Z]"
)
_ALWAYS = {"libcuda": "libcuda.so.1", "libnvidia-ml": "libnvidia-ml.so.1"}  # opened by name, and linked by nothing
_DECLARED = {  # functions that the headers declare, and the names that macros give them in the library
    "libcudart": ("cuda_runtime_api.h", re.compile(r"CUDARTAPI(?:_CDECL)?\s+(cuda\w+)\s*\(")),
    "libcuda": ("cuda.h", re.compile(r"CUresult CUDAAPI (cu\w+)\s*\(|^\s*#\s*define\s+cu\w+\s+(cu\w+_v\d+)\s*$", re.M)),
}
_LINKED = ("libcuda",)  # Triton 3.3 compiles its launchers against these (`-lcuda`)
_NEEDS_RUNTIME = ("libcuda", "libnvidia-ml", "libnccl", "libcublas", "libcublasLt", "libcudnn")


class Wanted:
    """The libraries to make: the soname of each, and the symbols that it must have."""

    def __init__(self):
        self.sonames: dict[str, str] = dict(_ALWAYS)
        self.symbols: dict[str, set[str]] = defaultdict(set)

    def add(self, paths: Iterable[Path]) -> Wanted:
        """Adds what shared objects ask for."""
        read = [found for found in (elf.read(path) for path in sorted(paths)) if found is not None]
        for one in read:
            for soname in one.needs:
                if match := _LIBRARY.match(soname):
                    self.sonames.setdefault(match[1], soname)
        for one in read:
            for symbol in one.undefined:
                base = self._library_of(symbol)
                if base in self.sonames:
                    self.symbols[base].add(symbol.name)
        return self

    def _library_of(self, symbol: elf.Symbol) -> str:
        if match := _LIBRARY.match(symbol.library):
            return match[1]
        if symbol.library or not _UNVERSIONED.match(symbol.name):
            return ""
        return next((owner for prefix, owner in _OWNERS.items() if symbol.name.startswith(prefix)), "")

    def add_declared(self, headers: Path) -> Wanted:
        """Adds every function of the CUDA runtime and of the driver that the headers declare."""
        for base, (header, pattern) in _DECLARED.items():
            text = (headers / header).read_text(errors="replace")
            self.symbols[base] |= {name for match in pattern.finditer(text) for name in match.groups() if name}
        return self

    @property
    def runtime(self) -> int:
        """The major version of the CUDA runtime."""
        return int(self.sonames["libcudart"].rsplit(".", 1)[1])


def sources_digest() -> str:
    """Eight characters that change with the sources, and with how they are compiled."""
    sha = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(SOURCES.rglob("*.[ch]")):
        sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()[:8]


def build(wanted: Wanted, headers: Path, output: Path) -> None:
    """Compiles all of it into the folder `output`, which appears complete or not at all.

    `headers`: the folder of cuda_runtime_api.h. Raises RuntimeError where there is no C compiler or where it fails.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        # cudart first, because others call it
        for base in sorted(wanted.sonames, key=lambda base: (base != "libcudart", base)):
            _compile(base, wanted, headers, scratch)
        preloaded = ["-shared", "-fPIC", "-O1", "-w", "-o", scratch / PRELOADED, SOURCES / "preloaded.c", "-ldl"]
        compiler.run([*preloaded, "-lpthread"])
        if output.exists():
            shutil.rmtree(output)
        os.replace(scratch, output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def called_name(base: str) -> str:
    """Returns the function of the stub of "libcudnn" that says whether the program used what only the library knows."""
    return f"simgpu_called_{base.replace('-', '_')}"


def _compile(base: str, wanted: Wanted, headers: Path, folder: Path) -> None:
    soname = wanted.sonames[base]
    written = sorted((SOURCES / base).glob("*.c")) or list(SOURCES.glob(f"{base}.c"))
    generated, versions = folder / f"{base}.c", folder / f"{base}.map"
    # A function that is written out is a strong symbol, and takes the place of the weak one.
    names = sorted(name for name in wanted.symbols[base] if name.isidentifier())
    lines = [f'int {name}() __attribute__((weak, alias("simgpu_nothing")));' for name in names]
    flag = f"{called_name(base)}_flag"
    called = [
        f"int {flag};",
        f"static int simgpu_nothing() {{ {flag} = 1; return 0; }}",
        f"int {called_name(base)}(void) {{ return {flag}; }}",
    ]
    generated.write_text("\n".join([*called, *lines, ""]))
    tag = "NVSHMEM" if "nvshmem" in base else soname.replace("-", "_")
    versions.write_text(f"{tag} {{ global: *; }};\n")
    arguments = ["-w", "-shared", "-fPIC", "-O1", "-o", folder / soname, generated, *written]
    arguments += [f"-I{headers}", f"-DCUDA_MAJOR={wanted.runtime}", f"-DCALLED={flag}"] if written else []
    if base in _NEEDS_RUNTIME:
        arguments += [folder / wanted.sonames["libcudart"]]
    arguments += [f"-Wl,-soname,{soname}", f"-Wl,--version-script={versions}", "-Wl,-rpath,$ORIGIN"]
    compiler.run([*arguments, "-lpthread", "-ldl"])
    if base in _LINKED:
        (folder / f"{base}.so").symlink_to(soname)
    generated.unlink()
    versions.unlink()


def of_torch(torch: Path) -> list[Path]:
    """The shared objects of an unpacked or installed torch: `torch` is its package's folder."""
    return sorted((torch / "lib").glob("*.so*"))


_SKIPPED = ("torch", "triton", "nvidia", "functorch")


def extensions(folders: Iterable[str] | None = None) -> list[Path]:
    """Shared objects of installed packages that need a CUDA library, those of torch and of NVIDIA's wheels excluded.

    `folders`: where packages are installed, by default those of `sys.path`.
    """
    found = []
    for folder in dict.fromkeys(sys.path if folders is None else folders):
        root = Path(folder)
        if folders is None and next(root.glob("*.dist-info"), None) is None:
            continue  # packages are not installed there
        for at, within, files in os.walk(root):
            if at == str(root):
                within[:] = [name for name in within if name not in _SKIPPED and not name.endswith("-info")]
            for name in files:
                if ".so" not in name or not (name.endswith(".so") or ".so." in name):
                    continue
                path = Path(at, name)
                try:
                    read = elf.read(path, symbols=False)
                except (OSError, ValueError):
                    continue
                if read is not None and any(map(_LIBRARY.match, read.needs)):
                    found.append(path)
    return sorted(found)
