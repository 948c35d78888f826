"""Checks a test's GPU memory against a limit, on every machine: `@pytest.mark.gpu_memory(gpu="T4", peak="12 GiB")`.

The test runs on a simulated GPU, so it gives the same figures everywhere and needs no GPU. If it exceeds its limit it
fails, and the message says by how many bytes, in which stage, operator and line, what the memory consists of, and what
would help. The fixture `simulated_gpu` provides a GPU without a limit. Neither simgpu nor torch is imported before one
of the two is used.

With `--gpu-engine stub` each of these tests runs in a process of its own on PyTorch's CUDA build (docs/engines.md).
"""

import contextlib
import os
import time

import pytest

MARK = "gpu_memory"
OPTIONS = ("gpu", "peak", "reserved", "nvidia_smi", "memory", "values")
DEFAULT = "A100-80GB"


def pytest_addoption(parser):
    parser.getgroup("simgpu").addoption(
        "--gpu-engine",
        choices=("meta", "stub"),
        default="meta",
        help="what runs tests with a simulated GPU: meta, or stub, PyTorch's CUDA build in a process for each",
    )


def pytest_configure(config):
    if config.getoption("gpu_engine") == "stub" and not _on_stub():
        config.pluginmanager.register(_OnStub())
    config.addinivalue_line(
        "markers",
        f'{MARK}(gpu="{DEFAULT}", peak=None, reserved=None, nvidia_smi=None, memory=None, values=False): the test runs '
        'on this simulated GPU, and fails if it allocates more than peak ("12 GiB", or bytes), reserves more, or shows '
        "more in nvidia-smi, or does not fit; memory replaces the GPU's capacity",
    )


@pytest.fixture
def simulated_gpu(request):
    """Provides a simulated GPU for one test: that of its mark `gpu_memory`, or the fixture's parameter, or an
    A100-80GB.
    """
    from simgpu import session
    from simgpu.device import machine

    if _on_stub():
        yield _of_the_stub_engine()
        return
    if request.node.get_closest_marker(MARK) is not None:  # the mark's GPU is in use around the test
        spec = machine.on().spec
        yield session.SimulatedGPU(spec.key, spec.total_memory, machine.on().unmodeled)
        return
    with session.simulated_gpu(getattr(request, "param", DEFAULT)) as gpu:
        yield gpu


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Enters the GPU around fixtures too, so that a model that a fixture creates counts."""
    mark = item.get_closest_marker(MARK)
    if mark is None or _on_stub() or item.config.getoption("gpu_engine") == "stub":
        return (yield)
    with contextlib.ExitStack() as stack:
        try:
            item.stash[_GATE] = stack.enter_context(_gate(mark))
        except (ValueError, TypeError) as error:
            item.stash[_WRONG] = str(error)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Compares the test's peak with the limit."""
    if _WRONG in item.stash:
        pytest.fail(f"@pytest.mark.{MARK}: {item.stash[_WRONG]}", pytrace=False)
    gate = item.stash.get(_GATE, None)
    if gate is None:
        return (yield)
    try:
        result = yield
    except Exception as error:
        if gate.ran_out(error):
            pytest.fail(gate.out_of_memory(), pytrace=False)
        raise
    above = gate.above()
    if above:
        pytest.fail(above, pytrace=False)
    return result


def _on_stub() -> bool:
    """Whether this is a pytest that runs one test on the stub engine."""
    return bool(os.environ.get("SIMGPU_TEST_ON_STUB"))  # simgpu.report.gate.ON_STUB


def _of_the_stub_engine():
    """Returns the fixture's GPU for a test on the stub engine."""
    import torch

    from simgpu.session import SimulatedGPU
    from simgpu.unmodeled import Unmodeled

    key = os.environ["MOCK_KEY"]
    return SimulatedGPU(key, torch.cuda.mem_get_info()[1], Unmodeled(key))


class _OnStub:
    """Runs the tests that have a simulated GPU on the stub engine, each in a process of its own."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        mark = item.get_closest_marker(MARK)
        if mark is None and "simulated_gpu" not in item.fixturenames:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        started = time.time()
        outcome, said = self._run(item, mark)
        longrepr = (str(item.path), 0, said) if outcome == "skipped" else said or None
        for when, ended, text in (("setup", "passed", None), ("call", outcome, longrepr), ("teardown", "passed", None)):
            report = pytest.TestReport(
                item.nodeid,
                item.location,
                dict.fromkeys(item.keywords, 1),
                ended,  # pyright: ignore[reportArgumentType]
                text,
                when,  # pyright: ignore[reportArgumentType]
                duration=time.time() - started if when == "call" else 0.0,
            )
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, item, mark) -> tuple[str, str]:
        from simgpu.report.gate import on_stub

        parameters = getattr(getattr(item, "callspec", None), "params", {})
        try:
            options = {"gpu": parameters.get("simulated_gpu", DEFAULT)} if mark is None else _options(mark)
            return on_stub(item.nodeid, str(item.config.rootpath), **options)
        except (ValueError, TypeError) as error:
            return "failed", f"@pytest.mark.{MARK}: {error}"


def _gate(mark):
    from simgpu.report.gate import Gate

    return Gate(**_options(mark))


def _options(mark) -> dict:
    """The arguments of a mark."""
    unknown = set(mark.kwargs) - set(OPTIONS)
    if mark.args or unknown:
        given = ", ".join(map(repr, mark.args)) or ", ".join(sorted(unknown))
        raise ValueError(f"it takes {', '.join(f'{name}=' for name in OPTIONS)}; not {given}")
    return {"gpu": DEFAULT, **mark.kwargs}


_GATE: pytest.StashKey = pytest.StashKey()
_WRONG: pytest.StashKey = pytest.StashKey()
