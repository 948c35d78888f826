"""The stub libraries: what is read of shared objects, what is compiled, and what the stubs answer."""

import ctypes
import functools
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from simgpu.gpus import specs
from simgpu.running.stub import untimed
from simgpu.stub import compiler, devices, elf, engine, install, libraries, nvidia_smi

LINUX = pytest.mark.skipif(bool(engine.supported()), reason="the stub engine is for Linux on x86-64")
COMPILER = pytest.mark.skipif(compiler.command() is None, reason="no C compiler is here")

USER = """
int cudaMalloc(void **, unsigned long);
int cublasGemmSomethingNew(void);
int use(void) { void *p; return cudaMalloc(&p, 8) + cublasGemmSomethingNew(); }
int mine(void) { return 0; }
"""


@pytest.fixture
def extension(tmp_path):
    """A shared object that needs a CUDA runtime and takes two symbols from CUDA's libraries, and that runtime."""
    runtime, source, path = tmp_path / "libcudart.so.13", tmp_path / "use.c", tmp_path / "use.so"
    (tmp_path / "runtime.c").write_text("int cudaMalloc(void **p, unsigned long n) { return 0; }")
    (tmp_path / "runtime.map").write_text("libcudart.so.13 { global: *; };")
    version = f"-Wl,--version-script={tmp_path / 'runtime.map'}"
    shared = ["-shared", "-fPIC", "-o"]
    compiler.run([*shared, runtime, tmp_path / "runtime.c", "-Wl,-soname,libcudart.so.13", version])
    source.write_text(USER)
    compiler.run([*shared, path, source, runtime])
    return path


@LINUX
@COMPILER
def test_a_shared_object_names_its_libraries_and_symbols(extension):
    read = elf.read(extension)
    assert read is not None
    assert "libcudart.so.13" in read.needs
    assert elf.Symbol("cudaMalloc", "libcudart.so.13") in read.undefined
    assert elf.Symbol("cublasGemmSomethingNew", "") in read.undefined
    assert {"use", "mine"} <= set(read.defined)
    assert elf.read(extension, symbols=False) == elf.SharedObject(read.needs, (), ())


@LINUX
@COMPILER
def test_symbols_go_to_the_library_that_owns_them(extension):
    wanted = libraries.Wanted()
    wanted.sonames["libcublas"] = "libcublas.so.13"
    wanted.add([extension])
    assert wanted.sonames["libcudart"] == "libcudart.so.13"
    assert wanted.symbols["libcudart"] == {"cudaMalloc"}
    assert wanted.symbols["libcublas"] == {"cublasGemmSomethingNew"}
    assert wanted.runtime == 13


@LINUX
@COMPILER
def test_an_extension_is_found_among_installed_packages(extension):
    packages = extension.parent / "packages"
    for name in ("bitsandbytes", "nvidia"):
        (packages / name).mkdir(parents=True)
        (packages / name / "lib.so").write_bytes(extension.read_bytes())
    (packages / "bitsandbytes" / "other.so").write_text("not a shared object")
    assert libraries.extensions([str(packages)]) == [packages / "bitsandbytes" / "lib.so"]


def test_a_file_that_is_not_a_shared_object(tmp_path):
    (tmp_path / "text.so").write_text("no library")
    (tmp_path / "empty.so").write_text("")
    assert elf.read(tmp_path / "text.so") is None
    assert elf.read(tmp_path / "empty.so") is None


@pytest.mark.parametrize(
    ("gpu", "kernels"),
    [("RTX 4090", 86), ("L4", 86), ("A100-80GB", 80), ("H100", 90), ("T4", 75)],
)
def test_a_gpu_runs_the_newest_kernels_of_its_major_version(gpu, kernels):
    """The architectures are those of torch 2.13.0+cu130, `torch.cuda.get_arch_list()`."""
    assert devices.kernels_of(gpu, [75, 80, 86, 90, 100, 120]) == kernels


@pytest.mark.parametrize("gpu", sorted(specs.SPECS))
def test_every_gpu_is_described(gpu):
    described = devices.environment(gpu)
    assert described["MOCK_TOTAL"] == str(specs.spec(gpu).total_memory)
    assert all(described.values())


@pytest.mark.parametrize("name", ["win32", "darwin"])
def test_elsewhere_it_says_what_to_do(name, monkeypatch):
    monkeypatch.setattr(sys, "platform", name)
    assert ("WSL" if name == "win32" else "docker") in engine.supported()
    with pytest.raises(engine.EngineError, match="Linux on x86-64"):
        engine.find()


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("cuda: Optional[str] = '12.6'", "12.6"),
        ("cuda: str | None = '13.0'", "13.0"),
        ("cuda: Optional[str] = None", ""),
    ],
)
def test_the_version_of_cuda_is_read_from_the_build(tmp_path, line, cuda):
    """The lines are those of version.py in torch 2.7.0, 2.13.0, and in CPU builds."""
    (tmp_path / "version.py").write_text(f"__version__ = '2.7.0'\n{line}\nhip: Optional[str] = None\n")
    assert engine.Engine("2.7.0", tmp_path, False, None).cuda == cuda


def test_headers_are_those_of_the_builds_cuda():
    assert install.header_wheels("12.6") == ["nvidia-cuda-runtime-cu12==12.6.*", "nvidia-cuda-nvcc-cu12==12.6.*"]
    assert install.header_wheels("13.2") == ["nvidia-cuda-runtime==13.2.*", "nvidia-cuda-crt==13.2.*"]
    for older in "11.8", "":
        with pytest.raises(engine.EngineError, match="needs 12 or newer"):
            install.header_wheels(older)


def test_headers_are_found_by_their_major_version(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMGPU_ENGINES", str(tmp_path))
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    places = {12: "headers-12.6/nvidia/cuda_runtime/include", 13: "headers-13.0/nvidia/cu13/include"}
    for major, place in places.items():
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {major}060\n")
    assert {major: engine.headers_of(major) for major in places} == {k: tmp_path / v for k, v in places.items()}
    assert engine.headers_of(14) is None


def test_no_kernel_is_tuned_by_time():
    """Inductor would compile the neighbours of a kernel's block sizes, and would time each of them."""

    class CachingAutotuner:
        launchers = ("first", "second")

        def benchmark_all_configs(self, *args):
            raise AssertionError("timed")

        coordinate_descent_tuning = benchmark_all_configs

    module = types.ModuleType("triton_heuristics")
    module.CachingAutotuner = CachingAutotuner
    untimed.PATCHES["torch._inductor.runtime.triton_heuristics"](module)
    launcher = types.SimpleNamespace(config=types.SimpleNamespace())
    assert CachingAutotuner().coordinate_descent_tuning(launcher) is launcher
    assert launcher.config.found_by_coordesc
    times = CachingAutotuner().benchmark_all_configs()
    assert min(times, key=times.__getitem__) == "first"


@pytest.mark.parametrize(
    ("named", "devices"),
    [
        ((), [0, 1, 2]),
        (("-i", "1"), [1]),
        (("--id=0,2",), [0, 2]),
        (("--id", f"{nvidia_smi.UUID}02"), [2]),
        (("-i", "3"), []),
    ],
)
def test_nvidia_smi_answers_for_the_devices_that_are_named(named, devices, monkeypatch, capsys):
    """Inductor asks for the clock of device 0 and expects one number."""
    monkeypatch.setenv("MOCK_NDEV", "3")
    status = nvidia_smi.main([*named, "--query-gpu=index", "--format=csv,noheader,nounits"])
    assert status == (0 if devices else nvidia_smi.NO_DEVICE)
    assert [line for line in capsys.readouterr().out.split() if line.isdigit()] == list(map(str, devices))


@LINUX
def test_nvidia_smi_starts_without_the_environments_packages(monkeypatch, tmp_path):
    """It is started once for each kernel in some versions of Inductor, so it must not import what a run prepares."""
    monkeypatch.setenv("SIMGPU_ENGINES", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('imported')")
    program = nvidia_smi.folder() / "nvidia-smi"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "MOCK_NDEV": "8"}
    asked = [program, "-i", "0", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    assert int(subprocess.run(asked, env=environ, capture_output=True, text=True, check=True).stdout) > 0


OLDER = """
import importlib, sys
import torch
del torch.AcceleratorError, torch.library.get_kernel  # of torch 2.8 and 2.10
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_what_a_run_imports_loads_on_an_older_torch():
    """The process of the program imports these, the last two when the program has failed."""
    names = ["simgpu.running.stub.child", "simgpu.running.stub.findings", "simgpu.running.stub.known"]
    names += ["simgpu.stub.rank", "simgpu.running.steps", "simgpu.running.builds", "simgpu.report.failing"]
    done = subprocess.run([sys.executable, "-c", OLDER, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- with CUDA's headers, which `simgpu engine install` fetches ------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Builds the stubs of CUDA's runtime and driver for a major version, once: a process loads a soname only once."""

    @functools.cache
    def of(major: int) -> Path:
        headers = None if engine.supported() or compiler.command() is None else engine.headers_of(major)
        if headers is None:
            pytest.skip(f"no headers of CUDA {major} are here: simgpu engine install")
        wanted = libraries.Wanted()
        wanted.sonames["libcudart"] = f"libcudart.so.{major}"
        folder = tmp_path_factory.mktemp("engine") / "stubs"
        libraries.build(wanted.add_declared(headers), headers, folder)
        return folder

    return of


@pytest.fixture(scope="module")
def stubs(built) -> Path:
    return built(13)


ACTIVE = 1  # cudaStreamCaptureStatusActive


@pytest.mark.parametrize(
    ("major", "forms"),
    [
        (12, {"cudaStreamGetCaptureInfo": 0, "cudaStreamGetCaptureInfo_v2": 3, "cudaStreamGetCaptureInfo_v3": 4}),
        (13, {"cudaStreamGetCaptureInfo": 4}),
    ],
)
def test_each_form_of_the_question_about_a_capture(built, major, forms):
    """`forms`: the functions, and how many arguments follow the status and the capture's number."""
    runtime = ctypes.CDLL(str(built(major) / f"libcudart.so.{major}"))
    stream, status, number = ctypes.c_void_p(0x1000), ctypes.c_int(), ctypes.c_ulonglong()
    question = (stream, ctypes.byref(status), ctypes.byref(number))
    nothing = ctypes.c_void_p()
    for capture in 1, 2:
        assert runtime.cudaStreamBeginCapture(stream, 0) == 0
        for name, more in forms.items():
            status.value = number.value = 0
            assert runtime[name](*question, *[nothing] * more) == 0
            assert (status.value, number.value) == (ACTIVE, capture)
        assert runtime.cudaStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p())) == 0
        for name, more in forms.items():
            assert runtime[name](*question, *[nothing] * more) == 0
            assert (status.value, number.value) == (0, 0)


def test_programs_can_be_linked_to_the_driver(stubs):
    assert (stubs / "libcuda.so").resolve() == (stubs / "libcuda.so.1").resolve()


DRIVER = """
cuInit cuDriverGetVersion cuDeviceGet cuDeviceGetCount cuDeviceGetName cuDeviceGetAttribute cuCtxGetCurrent
cuCtxSetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxGetDevice cuCtxGetLimit cuCtxSetLimit cuCtxSynchronize
cuDevicePrimaryCtxRetain cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRelease_v2 cuModuleLoad cuModuleLoadData
cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig
cuPointerGetAttribute cuPointerGetAttributes cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel
cuOccupancyMaxActiveClusters cuOccupancyMaxActiveBlocksPerMultiprocessor cuTensorMapEncodeTiled
cuTensorMapEncodeIm2col cuLinkCreate_v2 cuLinkAddData_v2 cuLinkComplete cuStreamGetCtx cuMemGetInfo_v2
cuGetErrorString cuGetErrorName cuMemCreate cuMemMap cuMemPrefetchAsync_v2 cuGetProcAddress_v2
"""


def test_the_driver_has_what_triton_and_extensions_ask_for(stubs):
    read = elf.read(stubs / "libcuda.so.1")
    assert read is not None
    assert set(DRIVER.split()) - set(read.defined) == set()
    runtime = elf.read(stubs / "libcudart.so.13")
    assert runtime is not None
    assert {"cudaMallocManaged", "cudaMemPrefetchAsync", "cudaMalloc3D"} - set(runtime.defined) == set()


def test_driver_and_runtime_count_one_memory(stubs, monkeypatch):
    monkeypatch.setenv("MOCK_TOTAL", str(64 * 2**20))
    monkeypatch.setenv("MOCK_CTX", str(2 * 2**20))
    driver, runtime = ctypes.CDLL(str(stubs / "libcuda.so.1")), ctypes.CDLL(str(stubs / "libcudart.so.13"))
    address, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(5)) == 0
    assert runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
    assert (free.value, total.value) == (60 * 2**20, 64 * 2**20)
    other = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(other), ctypes.c_size_t(61 * 2**20)) == 2  # cudaErrorMemoryAllocation
    assert driver.cuMemFree_v2(address) == 0
    runtime.mock_most_used.restype = ctypes.c_size_t
    assert runtime.mock_most_used(0) == 4 * 2**20
