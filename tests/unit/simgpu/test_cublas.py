"""cuBLAS's workspace against sizes that PyTorch's CUDA host code allocates (the oracle's, torch 2.13.0)."""

import warnings

import pytest

from labkit import formulas
from simgpu.device.machine import Machine
from simgpu.gpus.cublas_workspace import cublas_workspace_bytes, keeps_blas_workspace, lt_workspace_bytes
from simgpu.gpus.specs import SPECS, spec
from tests.pinned import of_pinned_torch
from tools.oracle.cases import on_simulated

SMALL = 8_519_680
LARGE = 33_554_432


@pytest.mark.parametrize(
    ("capability", "size"),
    [
        ((7, 5), SMALL),
        ((8, 0), SMALL),
        ((8, 9), SMALL),
        ((9, 0), LARGE),
        ((10, 0), LARGE),
        ((10, 3), LARGE),
        ((11, 0), SMALL),
        ((12, 0), LARGE),
    ],
)
def test_default(capability, size):
    assert cublas_workspace_bytes(capability, environ={}) == size


@pytest.mark.parametrize(
    ("version", "blackwell", "thor"),
    [((2, 11), SMALL, SMALL), ((2, 12), LARGE, SMALL), ((2, 14), LARGE, LARGE), ((2, 15), LARGE, LARGE)],
)
def test_default_by_version(version, blackwell, thor):
    assert cublas_workspace_bytes((10, 0), version, {}) == blackwell
    assert cublas_workspace_bytes((11, 0), version, {}) == thor
    assert cublas_workspace_bytes((9, 0), version, {}) == LARGE
    assert cublas_workspace_bytes((8, 0), version, {}) == SMALL


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (":16:8", 131_072),
        (":4096:2:16:8", SMALL),
        (":4096:8", LARGE),
        (":0:0", 0),
        (":3:1", 3072),
        (":16:8:", 131_072),
        ("x:16:8y:1:1", 132_096),
        ("::16:8:32:2", 196_608),
        (":99999999999:1", 99_999_999_999 * 1024),
    ],
)
def test_config(config, size):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cublas_workspace_bytes((8, 0), environ={"CUBLAS_WORKSPACE_CONFIG": config}) == size


@pytest.mark.parametrize("config", ["", "16:8", "abc", ": 16:8", ":4096:-1"])
@pytest.mark.parametrize(("capability", "size"), [((8, 0), SMALL), ((9, 0), LARGE)])
def test_config_that_cannot_be_parsed(config, capability, size):
    with pytest.warns(UserWarning, match=f"Could not parse CUBLAS_WORKSPACE_CONFIG.* of {size} bytes"):
        assert cublas_workspace_bytes(capability, environ={"CUBLAS_WORKSPACE_CONFIG": config}) == size


def test_environment_is_the_process_s_by_default(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert cublas_workspace_bytes((9, 0)) == 131_072
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    assert cublas_workspace_bytes((9, 0)) == LARGE


def test_old_torch():
    with pytest.raises(ValueError, match=r"2\.0 and later, not 1\.13"):
        cublas_workspace_bytes((8, 0), (1, 13), {})


@pytest.mark.parametrize("version", [(2, 11), (2, 12), (2, 13), (2, 14)])
def test_the_course_has_the_same_formula(version):
    for capability in {kind.compute_capability for kind in SPECS.values()}:
        course = formulas.cublas_workspace(capability, ".".join(map(str, version)))
        assert course == cublas_workspace_bytes(capability, version, {})


def test_torch_2_15_gives_workspaces_back():
    """After each multiplication, unless it is told to keep them."""
    kept = Machine(spec("H100"), (2, 14))
    given_back = Machine(spec("H100"), (2, 15))
    for machine in (kept, given_back):
        machine.take_blas_workspace(in_backward=False)
    assert (kept.allocator.allocated, given_back.allocator.allocated) == (LARGE, 0)
    assert given_back.allocator.max_allocated == LARGE
    assert keeps_blas_workspace((2, 15), {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"})


UNIFIED, LT_SIZE, CONFIG = "TORCH_CUBLASLT_UNIFIED_WORKSPACE", "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_WORKSPACE_CONFIG"


@pytest.mark.parametrize(
    ("environ", "in_2_11", "later"),
    [
        ({}, 2**20, None),
        ({UNIFIED: "1"}, None, None),
        ({UNIFIED: "yes"}, 2**20, None),
        ({UNIFIED: "0"}, 2**20, 2**20),
        ({UNIFIED: "0", LT_SIZE: "512"}, 2**19, 2**19),
        ({UNIFIED: "0", LT_SIZE: "100000"}, 102_400_000, 102_400_000),
        ({UNIFIED: "0", LT_SIZE: "0"}, 0, 0),
        ({UNIFIED: "0", LT_SIZE: "abc"}, 2**20, 2**20),
        ({LT_SIZE: "12abc"}, 12 * 2**10, None),
        ({CONFIG: ":16:8"}, 2**17, None),
        ({UNIFIED: "0", CONFIG: ":16:8"}, 2**20, 2**20),
        ({LT_SIZE: "64000"}, LARGE, None),
    ],
)
def test_cublaslt_has_a_workspace_of_its_own(environ, in_2_11, later):
    """The sizes are the oracle's, of torch 2.11.0, 2.12.1 and 2.13.0 on an H100."""
    assert lt_workspace_bytes((9, 0), (2, 11), environ) == in_2_11
    assert lt_workspace_bytes((9, 0), (2, 12), environ) == lt_workspace_bytes((9, 0), (2, 13), environ) == later


@pytest.mark.parametrize(
    ("environ", "size"),
    [
        ({}, 2**20),
        ({UNIFIED: "1"}, 2**20),
        ({LT_SIZE: "64000"}, 65_536_000),
        ({CONFIG: ":16:8"}, 2**20),
        ({"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}, None),
        ({"TORCH_CUBLAS_WORKSPACE_CACHE": "1", UNIFIED: "0"}, 2**20),
    ],
)
def test_cublaslt_never_shares_a_workspace_that_is_not_kept(environ, size):
    """aten/src/ATen/cuda/CublasHandlePool.cpp, unified_cublas_and_lt_workspaces and getCUDABlasLtWorkspaceSize."""
    assert lt_workspace_bytes((9, 0), (2, 15), environ) == size


@of_pinned_torch
@pytest.mark.parametrize(
    ("code", "events"),
    [
        ("F.linear(a, w, b); a @ w.t()", "a1024 a1048576 f1024 a1024 S33554432 a33554432 f1024"),
        ("a @ w.t(); F.linear(a, w, b)", "a1024 S33554432 a33554432 f1024 a1024 a1048576 f1024"),
    ],
)
def test_without_sharing_a_linear_with_a_bias_takes_that_alone(code, events, monkeypatch):
    """The oracle's events, of torch 2.13.0."""
    monkeypatch.setenv(UNIFIED, "0")
    made = "a, w, b = (torch.ones(size, device='cuda') for size in ((8, 16), (32, 16), 32))"
    (found,) = on_simulated([f"{made}\n{code}"], "H100")
    before, after = "S2097152 a512 a2048 a128 ", " f512 f2048 f128"
    assert found.events == before + events + after
